// SPDX-License-Identifier: Apache-2.0
// The protocol's numbers and the layout of its headers. p4src/include/constants.p4 is their home; a test compares.
#ifndef NATIVE_PROTOCOL_H
#define NATIVE_PROTOCOL_H

#include <stdint.h>
#include <string.h>

#define PROTOCOL_VERSION 1
#define AGGREGATION_PORT 0x7A52
#define MAX_LANES 8
#define NO_KEY 0xFFFFFFFF
#define PARENT 31
#define PARENT_BIT 0x80000000
#define NOBODY 255

enum op {
    OP_DATA = 1,
    OP_RESULT = 2,
    OP_STATUS = 3,
    OP_ERROR = 4,
    OP_RESET = 5,
    OP_QUERY = 6,
    OP_ABORT = 7,
    OP_HELLO = 8,
};

enum outcome {
    OUTCOME_STARTED = 0,
    OUTCOME_ADDED = 1,
    OUTCOME_COMPLETED = 2,
    OUTCOME_STALE = 3,
    OUTCOME_MISMATCH = 4,
    OUTCOME_AHEAD = 5,
    OUTCOME_REPLAYED = 6,
    OUTCOME_NOT_ADMITTED = 7,
    OUTCOME_BAD_SLOT = 8,
    OUTCOME_MALFORMED = 9,
    OUTCOME_FORBIDDEN = 10,
    OUTCOME_HELLO = 11,
    OUTCOME_RESET = 12,
    OUTCOME_QUERY = 13,
    OUTCOME_SENT_UP = 14,
    OUTCOME_STORED = 15,
    OUTCOMES = 16,
};

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define PROTOCOL_ICMP 1
#define PROTOCOL_UDP 17
#define ARP_REQUEST 1
#define ARP_REPLY 2
#define ICMP_ECHO_REPLY 0
#define ICMP_ECHO_REQUEST 8
#define DEFAULT_TTL 64

#define PORTS 512     // 9 bits
#define DROP_PORT 511 // what BMv2 does not send to

#define PACKET_OUT_SIZE 4
#define PACKET_IN_SIZE 6
#define ETHERNET_SIZE 14
#define ARP_SIZE 28
#define IPV4_SIZE 20
#define ICMP_SIZE 4
#define UDP_SIZE 8
#define AGGREGATION_SIZE 18
#define UDP_HEADERS_SIZE (ETHERNET_SIZE + IPV4_SIZE + UDP_SIZE)

// Offsets within each header.
#define ETHERNET_DST 0
#define ETHERNET_SRC 6
#define ETHERNET_TYPE 12
#define ARP_OP 6
#define ARP_SENDER_MAC 8
#define ARP_SENDER_IP 14
#define ARP_TARGET_MAC 18
#define ARP_TARGET_IP 24
#define IPV4_TOTAL_LENGTH 2
#define IPV4_FRAGMENT 6
#define IPV4_TTL 8
#define IPV4_PROTOCOL 9
#define IPV4_CHECKSUM 10
#define IPV4_SRC 12
#define IPV4_DST 16
#define ICMP_CHECKSUM 2
#define UDP_SRC_PORT 0
#define UDP_DST_PORT 2
#define UDP_LENGTH 4
#define UDP_CHECKSUM 6
#define AGGREGATION_VERSION_OP 0
#define AGGREGATION_ACTIVE 1
#define AGGREGATION_PRESENT 2
#define AGGREGATION_WORKER 3
#define AGGREGATION_JOB 4
#define AGGREGATION_GENERATION 6
#define AGGREGATION_SLOT 8
#define AGGREGATION_SEQ 10
#define AGGREGATION_FINGERPRINT 14

static inline uint16_t load16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}

static inline uint32_t load32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

static inline uint64_t load48(const uint8_t *at) {
    return (uint64_t)load16(at) << 32 | load32(at + 2);
}

static inline void store16(uint8_t *at, uint32_t value) {
    uint16_t swapped = __builtin_bswap16((uint16_t)value);
    memcpy(at, &swapped, sizeof swapped);
}

static inline void store32(uint8_t *at, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

static inline void store48(uint8_t *at, uint64_t value) {
    store16(at, (uint32_t)(value >> 32));
    store32(at + 2, (uint32_t)value);
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian machines"
#endif

#endif
