// SPDX-License-Identifier: Apache-2.0
// For any processor: the readable form of what the others do.
#include "kernels/kernels.h"

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

static void sum(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                size_t places) {
    const double scale = double_power(up), back = double_power(-up);
    for (size_t i = begin; i < end; i++) {
        uint32_t words = 0;
        for (size_t rank = 0; rank < ranks; rank++)
            words += (uint32_t)lrint((double)from[rank][i] * scale);
        const float value = (float)((double)(int32_t)words * back);
        for (size_t place = 0; place < places; place++)
            to[place][i] = value;
    }
}

static int32_t within(int32_t value, int limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

static void quantise_16(const void *values, size_t count, int up, int limit, uint8_t *wire) {
    const float *from = values;
    const double scale = double_power(up);
    for (size_t i = 0; i < count; i += 2, wire += 4) {
        uint32_t word = 0;
        for (size_t at = i; at < i + 2 && at < count; at++)
            word += (uint32_t)within((int32_t)lrint((double)from[at] * scale), limit) << 16 * (at - i);
        word = htobe32(word);
        memcpy(wire, &word, 4);
    }
}

static void quantise_8(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire) {
    const float *from = values;
    const double scale = double_power(up);
    for (size_t i = 0; i < count; i += 4, wire += 4) {
        uint32_t word = 0;
        for (size_t at = i; at < i + 4 && at < count; at++, noise += NOISE_STEP) {
            int32_t fine = (int32_t)lrint((double)from[at] * scale) + (int32_t)noise_bits(noise);
            word += (uint32_t)within(fine >> NOISE_SHIFT, limit) << 8 * (at - i);
        }
        word = htobe32(word);
        memcpy(wire, &word, 4);
    }
}

// `bias` moves each lane's integers up, so that none borrows from the next one.
static uint32_t biased_word(const uint8_t *wire, uint32_t bias) {
    uint32_t word;
    memcpy(&word, wire, 4);
    return be32toh(word) + bias;
}

static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = biased_word(wire + i / 2 * 4, BIAS_16);
        to[i] = (float)(((int32_t)(word >> 16 * (i % 2) & 0xFFFF) - 0x8000) * scale);
    }
}

static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = biased_word(wire + i / 4 * 4, BIAS_8);
        to[i] = (float)(((int32_t)(word >> 8 * (i % 4) & 0xFF) - 0x80) * scale);
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

static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    for (size_t i = 0; i < count; i++) {
        uint32_t word, sum;
        memcpy(&word, wire + 4 * i, 4);
        memcpy(&sum, sums + 4 * i, 4);
        sum = htobe32(be32toh(sum) + be32toh(word));
        memcpy(sums + 4 * i, &sum, 4);
    }
}

const struct kernels kernels_portable = {
    .name = "portable",
    .scan_float32 = scan_float32,
    .scan_int32 = scan_int32,
    .quantise = quantise,
    .dequantise = dequantise,
    .quantise_16 = quantise_16,
    .quantise_8 = quantise_8,
    .dequantise_16 = dequantise_16,
    .dequantise_8 = dequantise_8,
    .swap = swap,
    .add = add,
    .sum = sum,
    .halves = &halves_portable,
};
