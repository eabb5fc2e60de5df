// SPDX-License-Identifier: Apache-2.0
// The protocol's packets: aggregation header, one key for each lane, and the values of the lanes that are present. Each
// is the payload of a UDP datagram.
#ifndef P4REDUCE_PACKET_H
#define P4REDUCE_PACKET_H

#include "wire/bytes.h"
#include "wire/headers.h"

#include <stdbool.h>
#include <stddef.h>

// The shape of a data plane's packets.
struct layout {
    unsigned lanes;
    unsigned block_size;   // values
    size_t bare_length;    // bytes without values
    size_t lane_length;    // bytes of one lane's values
    size_t largest_length; // bytes with all lanes present
};

// A packet that was received. `keys` and `values` point into the datagram, in network order.
struct packet {
    struct header header;
    const uint8_t *keys;
    const uint8_t *values;
};

struct layout layout_of(unsigned lanes, unsigned block_size);

// Decodes a datagram, into which `packet` then points. Returns false if it is not a well-formed packet.
bool packet_decode(const struct layout *layout, const uint8_t *payload, size_t length, struct packet *packet);

// Writes the part of the header that one worker's packets share.
void packet_address(uint8_t *payload, enum op op, uint16_t job, uint16_t generation, uint8_t worker);

// Writes the part of the header that differs between rounds.
void packet_round(uint8_t *payload, uint8_t active, uint8_t present, uint16_t slot, uint32_t seq, uint32_t fingerprint);

static inline uint32_t packet_key(const struct packet *packet, unsigned lane) {
    return load_32(packet->keys + KEY_SIZE * lane);
}

// Returns the 64 bits by which an ABORT proves that the controller sent it.
static inline uint64_t packet_abort_secret(const struct packet *packet) {
    return (uint64_t)packet->header.seq << 32 | packet->header.fingerprint;
}

// Returns the AbortReason of an ABORT.
static inline uint32_t packet_abort_reason(const struct packet *packet) {
    return packet_key(packet, 0) & 0xFFFF;
}

// Returns the rank that an ABORT names, or -1. A rank that `worker` has no number for is in the upper half of the first
// key, plus one.
static inline int32_t packet_abort_rank(const struct packet *packet) {
    return packet->header.worker != NOBODY ? packet->header.worker : (int32_t)(packet_key(packet, 0) >> 16) - 1;
}

static inline void packet_set_key(uint8_t *payload, unsigned lane, uint32_t key) {
    store_32(payload + AGGREGATION_SIZE + KEY_SIZE * lane, key);
}

#endif
