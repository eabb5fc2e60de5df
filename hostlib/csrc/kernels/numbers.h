// SPDX-License-Identifier: Apache-2.0
// How a block's values become the int32 that switches add, and sums become values again: docs/protocol.md, "Numbers".
#ifndef P4REDUCE_NUMBERS_INTERNAL_H
#define P4REDUCE_NUMBERS_INTERNAL_H

#include "kernels/kernels.h"
#include "p4reduce_numbers.h"

#include <endian.h>
#include <string.h>

// What the values of an operation are, and who adds them.
struct numbers {
    const struct kernels *kernels;
    uint32_t type;     // p4reduce_type
    uint32_t wire;     // p4reduce_wire
    unsigned per_word; // values
    size_t value_bytes;
    const struct half *half; // of 16-bit floats, which are worked on as float32; else NULL
    int magnitude;     // bits of a value on the wire, such that the sum of all ranks' has room
    uint32_t seed;     // of what is random in rounding: the operation's fingerprint and the rank
    float divisor;     // of the sums; 0 for none
};

// Returns false where there is no such form of such values, or for so many ranks.
bool numbers_of(struct numbers *numbers, const struct kernels *kernels, uint32_t type, uint32_t wire,
                unsigned world_size);

const char *numbers_wire_name(uint32_t wire);

static inline size_t numbers_words(const struct numbers *numbers, size_t count) {
    return (count + numbers->per_word - 1) / numbers->per_word;
}

// `exponents`: one for each of the whole or ragged blocks. Returns whether a block of zeros holds a -0.
bool numbers_scan(const struct numbers *numbers, const void *values, size_t count, size_t block_size,
                  uint8_t *exponents);

// The first block from number `from` on that is not zero; `blocks` if there is none.
static inline unsigned next_nonzero(const uint8_t *exponents, unsigned from, unsigned blocks) {
    uint64_t some;
    for (; from + sizeof some <= blocks; from += (unsigned)sizeof some) {
        memcpy(&some, exponents + from, sizeof some);
        if (some != 0)
            return from + (unsigned)__builtin_ctzll(le64toh(some)) / 8;
    }
    while (from < blocks && exponents[from] == BLOCK_ZERO)
        from++;
    return from;
}

// To numbers_words(count) words. `first`: the place of the first value in its tensor.
void numbers_quantise(const struct numbers *numbers, const void *values, size_t count, unsigned exponent,
                      uint64_t first, uint8_t *wire);

// What of float32 values the words that `numbers_quantise` gave do not say: 0 where one is not finite.
void numbers_residual(const struct numbers *numbers, const void *values, const uint8_t *wire, size_t count,
                      unsigned exponent, float *residual);

// Quantises, adds up and dequantises the values from number `begin` to `end` of a block at `ranks` ranks: `from` and
// `to`, which may be the same memory, are where their tensors begin, as the numbers count, and all `places` get the
// sums. False where that has to be done step by step.
bool numbers_sum(const struct numbers *numbers, const void *const *from, size_t ranks, size_t begin, size_t end,
                 unsigned exponent, void *const *to, size_t places);

void numbers_dequantise(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                        void *values);

// The same, past the caches, for values that they do not hold, and need not; where that can be. The kernels' `settle` has
// to follow before others are told.
bool numbers_can_dequantise_to_memory(const struct numbers *numbers);
void numbers_dequantise_to_memory(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                                  void *values);

#endif
