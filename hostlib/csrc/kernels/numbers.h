// SPDX-License-Identifier: Apache-2.0
// Quantisation: how a block's values become the int32 that switches add, and how sums become values again. See
// docs/protocol.md, "Numbers".
#ifndef P4REDUCE_NUMBERS_INTERNAL_H
#define P4REDUCE_NUMBERS_INTERNAL_H

#include "kernels/kernels.h"
#include "p4reduce_numbers.h"

#include <endian.h>
#include <string.h>

// The form of an operation's values, and the kernels for it.
struct numbers {
    const struct kernels *kernels;
    uint32_t type;     // p4reduce_type
    uint32_t wire;     // p4reduce_wire
    unsigned per_word; // values
    size_t value_bytes;
    const struct half *half; // conversions of 16-bit floats, which are computed as float32; NULL for other types
    int magnitude;           // bits of a value on the wire, so that the sum of all ranks' values has room
    uint32_t seed;           // for stochastic rounding: the operation's fingerprint and the rank
    float divisor;           // divides the sums; 0 for none
};

// Fills `numbers`. Returns false if the wire cannot carry the type, or the sums of so many ranks.
bool numbers_of(struct numbers *numbers, const struct kernels *kernels, uint32_t type, uint32_t wire,
                unsigned world_size);

// Returns "int32", "int16" or "int8".
const char *numbers_wire_name(uint32_t wire);

// Returns how many words `count` values take.
static inline size_t numbers_words(const struct numbers *numbers, size_t count) {
    return (count + numbers->per_word - 1) / numbers->per_word;
}

// Finds the exponent of each block, including a ragged last one. Returns whether a block of zeros holds a -0.
bool numbers_scan(const struct numbers *numbers, const void *values, size_t count, size_t block_size,
                  uint8_t *exponents);

// Returns the first non-zero block from number `from` on, or `blocks` if there is none.
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

// Quantises `count` values to numbers_words(count) words. `first`: the index of the first value in its tensor.
void numbers_quantise(const struct numbers *numbers, const void *values, size_t count, unsigned exponent,
                      uint64_t first, uint8_t *wire);

// Computes the residual: the part of float32 values that the words of `numbers_quantise` do not represent. It is 0 for
// values that are not finite.
void numbers_residual(const struct numbers *numbers, const void *values, const uint8_t *wire, size_t count,
                      unsigned exponent, float *residual);

// Quantises, adds and dequantises the values number `begin` to `end` of `ranks` ranks in one step. `from` has the
// ranks' arrays, and `to` the `target_count` arrays that receive the sums. They may be the same memory. Returns false,
// and does nothing, if it must be done step by step.
bool numbers_sum(const struct numbers *numbers, const void *const *from, size_t ranks, size_t begin, size_t end,
                 unsigned exponent, void *const *to, size_t target_count);

// Converts the big-endian sums of a block to `count` values, and divides them if there is a divisor.
void numbers_dequantise(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                        void *values);

// Dequantises with non-temporal stores, if that is possible. The kernels' `settle` must follow before other threads or
// processes are told that the values are there.
bool numbers_can_dequantise_to_memory(const struct numbers *numbers);
void numbers_dequantise_to_memory(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                                  void *values);

#endif
