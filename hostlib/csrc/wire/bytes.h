// SPDX-License-Identifier: Apache-2.0
// Big-endian numbers at any address, and sets of lanes.
#ifndef P4REDUCE_WIRE_BYTES_H
#define P4REDUCE_WIRE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t load_16(const uint8_t *from) {
    uint16_t word;
    memcpy(&word, from, sizeof word);
    return be16toh(word);
}

static inline uint32_t load_32(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return be32toh(word);
}

static inline uint64_t load_48(const uint8_t *from) {
    return (uint64_t)load_16(from) << 32 | load_32(from + 2);
}

// Stores the value's lower 16 bits.
static inline void store_16(uint8_t *to, uint32_t value) {
    uint16_t word = htobe16((uint16_t)value);
    memcpy(to, &word, sizeof word);
}

static inline void store_32(uint8_t *to, uint32_t value) {
    uint32_t word = htobe32(value);
    memcpy(to, &word, sizeof word);
}

static inline void store_48(uint8_t *to, uint64_t value) {
    store_16(to, (uint32_t)(value >> 32));
    store_32(to + 2, (uint32_t)value);
}

// Returns how many lanes a set has. The compiler's builtin is a function call on processors that may lack the
// instruction.
static inline unsigned lanes_in(unsigned set) {
    unsigned pairs = set - (set >> 1 & 0x55u);
    unsigned nibbles = (pairs & 0x33) + (pairs >> 2 & 0x33);
    return (nibbles + (nibbles >> 4)) & 0xF;
}

#endif
