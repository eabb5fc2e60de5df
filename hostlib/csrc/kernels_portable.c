// SPDX-License-Identifier: Apache-2.0
// For any processor: the readable form of what the others do.
#include "kernels.h"

#include <endian.h>
#include <math.h>
#include <string.h>

static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    uint32_t negative_zeros = 0;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        uint32_t largest = 0, signs = 0;
        for (size_t i = 0; i < block_size; i++) {
            // As integers, the magnitudes of IEEE numbers are in the order of their values.
            uint32_t magnitude = words[i] & 0x7FFFFFFF;
            largest = largest > magnitude ? largest : magnitude;
            signs |= words[i];
        }
        exponents[block] = exponent_of(largest);
        negative_zeros |= largest == 0 ? signs : 0;
    }
    return negative_zeros != 0;
}

static void scan_int32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        uint32_t any = 0;
        for (size_t i = 0; i < block_size; i++)
            any |= words[i];
        exponents[block] = any ? BLOCK_NOT_FINITE : BLOCK_ZERO;
    }
}

static void quantise(const void *values, size_t count, int up, uint8_t *wire) {
    const float *from = values;
    const double scale = double_power(up);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = htobe32((uint32_t)lrint((double)from[i] * scale));
        memcpy(wire + 4 * i, &word, 4);
    }
}

static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, wire + 4 * i, 4);
        to[i] = (float)((double)(int32_t)be32toh(word) * scale);
    }
}

static void swap(const void *from, size_t count, void *to) {
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)from + 4 * i, 4);
        word = be32toh(word);
        memcpy((uint8_t *)to + 4 * i, &word, 4);
    }
}

const struct kernels kernels_portable = {
    .name = "portable",
    .scan_float32 = scan_float32,
    .scan_int32 = scan_int32,
    .quantise = quantise,
    .dequantise = dequantise,
    .swap = swap,
};
