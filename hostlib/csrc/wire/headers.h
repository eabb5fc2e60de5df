// SPDX-License-Identifier: Apache-2.0
// The layout of headers: each has NAME_SIZE bytes, and a field begins at offset NAME_FIELD. p4src/include/headers.p4
// defines them, and a test keeps this file equal to it.
#ifndef P4REDUCE_WIRE_HEADERS_H
#define P4REDUCE_WIRE_HEADERS_H

#include "wire/bytes.h"
#include "wire/constants.h"

enum {
    PACKET_OUT_SIZE = 4,

    PACKET_IN_SIZE = 6,
    PACKET_IN_BITMAP = 2,

    ETHERNET_SIZE = 14,
    ETHERNET_DST = 0,
    ETHERNET_SRC = 6,
    ETHERNET_TYPE = 12,

    VLAN_SIZE = 4,
    VLAN_PRIORITY = 0, // and drop_eligible, vlan
    VLAN_TYPE = 2,

    ARP_SIZE = 28,
    ARP_OP = 6,
    ARP_SENDER_MAC = 8,
    ARP_SENDER_IP = 14,
    ARP_TARGET_MAC = 18,
    ARP_TARGET_IP = 24,

    IPV4_SIZE = 20,
    IPV4_VERSION = 0, // and ihl
    IPV4_TOS = 1,
    IPV4_TOTAL_LENGTH = 2,
    IPV4_FLAGS = 6, // and fragment_offset
    IPV4_TTL = 8,
    IPV4_PROTOCOL = 9,
    IPV4_CHECKSUM = 10,
    IPV4_SRC = 12,
    IPV4_DST = 16,

    ICMP_SIZE = 4,
    ICMP_TYPE = 0,
    ICMP_CODE = 1,
    ICMP_CHECKSUM = 2,

    UDP_SIZE = 8,
    UDP_SRC_PORT = 0,
    UDP_DST_PORT = 2,
    UDP_LENGTH = 4,
    UDP_CHECKSUM = 6,

    AGGREGATION_SIZE = 18,
    AGGREGATION_VERSION = 0, // and op
    AGGREGATION_ACTIVE = 1,
    AGGREGATION_PRESENT = 2,
    AGGREGATION_WORKER = 3,
    AGGREGATION_JOB = 4,
    AGGREGATION_GENERATION = 6,
    AGGREGATION_SLOT = 8,
    AGGREGATION_SEQ = 10,
    AGGREGATION_FINGERPRINT = 14,

    KEY_SIZE = 4,
    VALUE_SIZE = 4,

    // Bytes before an aggregation header in a frame.
    UDP_HEADERS_SIZE = ETHERNET_SIZE + IPV4_SIZE + UDP_SIZE,
};

// Returns the first byte of an aggregation header.
static inline uint8_t version_and_op(enum op op) {
    return (uint8_t)(PROTOCOL_VERSION << 4 | op);
}

// An aggregation header, decoded.
struct header {
    uint8_t version;
    uint8_t op;
    uint8_t active;
    uint8_t present;
    uint8_t worker;
    uint16_t job;
    uint16_t generation;
    uint16_t slot;
    uint32_t seq;
    uint32_t fingerprint;
};

static inline struct header header_read(const uint8_t *from) {
    return (struct header){
        .version = from[AGGREGATION_VERSION] >> 4,
        .op = from[AGGREGATION_VERSION] & 0xF,
        .active = from[AGGREGATION_ACTIVE],
        .present = from[AGGREGATION_PRESENT],
        .worker = from[AGGREGATION_WORKER],
        .job = load_16(from + AGGREGATION_JOB),
        .generation = load_16(from + AGGREGATION_GENERATION),
        .slot = load_16(from + AGGREGATION_SLOT),
        .seq = load_32(from + AGGREGATION_SEQ),
        .fingerprint = load_32(from + AGGREGATION_FINGERPRINT),
    };
}

#endif
