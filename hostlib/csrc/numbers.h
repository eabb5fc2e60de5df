// SPDX-License-Identifier: Apache-2.0
// How a block's values become the int32 that switches add, and sums become values again: docs/protocol.md, "Numbers".
#ifndef P4REDUCE_NUMBERS_INTERNAL_H
#define P4REDUCE_NUMBERS_INTERNAL_H

#include "kernels.h"
#include "p4reduce_numbers.h"

// What the values of an operation are, and who adds them.
struct numbers {
    const struct kernels *kernels;
    uint32_t type; // p4reduce_type
    int headroom;  // bits that sums may need more than values
    float divisor; // of the sums; 0 for none
};

int numbers_headroom(unsigned world_size);

// `exponents`: one for each of the whole or ragged blocks. Returns whether a block of zeros holds a -0.
bool numbers_scan(const struct numbers *numbers, const void *values, size_t count, size_t block_size,
                  uint8_t *exponents);

void numbers_quantise(const struct numbers *numbers, const void *values, size_t count, unsigned exponent,
                      uint8_t *wire);

void numbers_dequantise(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                        void *values);

#endif
