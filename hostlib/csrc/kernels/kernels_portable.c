// SPDX-License-Identifier: Apache-2.0
// The kernels for any processor, in plain C: the readable form of the other sets.
#include "kernels/kernels.h"

#include "wire/bytes.h"

#include <math.h>
#include <string.h>

static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    uint32_t negative_zeros = 0;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        uint32_t largest = 0, signs = 0;
        for (size_t i = 0; i < block_size; i++) {
            // The magnitudes of IEEE numbers, read as integers, are in the order of their values.
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
    for (size_t i = 0; i < count; i++)
        store_32(wire + 4 * i, (uint32_t)lrint((double)from[i] * scale));
}

static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++)
        to[i] = (float)((double)(int32_t)load_32(wire + 4 * i) * scale);
}

static void sum(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                size_t target_count) {
    const double scale = double_power(up), back = double_power(-up);
    for (size_t i = begin; i < end; i++) {
        uint32_t words = 0;
        for (size_t rank = 0; rank < ranks; rank++)
            words += (uint32_t)lrint((double)from[rank][i] * scale);
        const float value = (float)((double)(int32_t)words * back);
        for (size_t target = 0; target < target_count; target++)
            to[target][i] = value;
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
        store_32(wire, word);
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
        store_32(wire, word);
    }
}

// A bias makes each integer of a word non-negative, so that none borrows from the next one.
static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = load_32(wire + i / 2 * 4) + BIAS_16;
        to[i] = (float)(((int32_t)(word >> 16 * (i % 2) & 0xFFFF) - 0x8000) * scale);
    }
}

static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const double scale = double_power(-up);
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = load_32(wire + i / 4 * 4) + BIAS_8;
        to[i] = (float)(((int32_t)(word >> 8 * (i % 4) & 0xFF) - 0x80) * scale);
    }
}

static void swap(const void *from, size_t count, void *to) {
    for (size_t i = 0; i < count; i++) {
        const uint32_t word = load_32((const uint8_t *)from + 4 * i);
        memcpy((uint8_t *)to + 4 * i, &word, sizeof word);
    }
}

static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    for (size_t i = 0; i < count; i++)
        store_32(sums + 4 * i, load_32(sums + 4 * i) + load_32(wire + 4 * i));
}

#define SIGN UINT32_C(0x80000000)

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// float16 has 5 bits of exponent where float32 has 8, and 10 of mantissa where it has 23. Its subnormals are normal
// numbers of float32.
static float widened_float16(uint16_t half) {
    const uint32_t magnitude = half & 0x7FFF, sign = (uint32_t)(half ^ magnitude) << 16;
    if (magnitude < 0x7C00)
        return float_of(sign | bits_of(float_of(magnitude << 13) * float_power(127 - 15)));
    const uint32_t quiet = magnitude > 0x7C00 ? UINT32_C(1) << 22 : 0; // makes NaNs quiet, as processors do
    return float_of(sign | UINT32_C(0xFF) << 23 | magnitude << 13 | quiet);
}

static uint16_t narrowed_float16(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & ~SIGN, sign = (bits & SIGN) >> 16;
    uint32_t half;
    if (magnitude > UINT32_C(0xFF) << 23)
        half = 0x7E00 | magnitude >> 13;
    else if (magnitude >= (UINT32_C(127) + 16) << 23)
        half = 0x7C00;
    else if (magnitude < (UINT32_C(127) - 14) << 23) // subnormal: the sum's last bit is of float16's last place
        half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
    else
        half = (magnitude - ((UINT32_C(127) - 15) << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (half & 0x7FFF));
}

// bfloat16 is the upper half of a float32.
static uint16_t narrowed_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & ~SIGN) > UINT32_C(0xFF) << 23)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static void widen_float16(const uint16_t *halves, size_t count, float *values) {
    for (size_t i = 0; i < count; i++)
        values[i] = widened_float16(halves[i]);
}

static void narrow_float16(const float *values, size_t count, uint16_t *halves) {
    for (size_t i = 0; i < count; i++)
        halves[i] = narrowed_float16(values[i]);
}

static void widen_bfloat16(const uint16_t *halves, size_t count, float *values) {
    for (size_t i = 0; i < count; i++)
        values[i] = float_of((uint32_t)halves[i] << 16);
}

static void narrow_bfloat16(const float *values, size_t count, uint16_t *halves) {
    for (size_t i = 0; i < count; i++)
        halves[i] = narrowed_bfloat16(values[i]);
}

static uint16_t largest_half(const uint16_t *halves, size_t count) {
    uint16_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        const uint16_t turned = (uint16_t)(halves[i] << 1 | halves[i] >> 15);
        largest = largest > turned ? largest : turned;
    }
    return largest;
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
    .float16 = {.widen = widen_float16, .narrow = narrow_float16},
    .bfloat16 = {.widen = widen_bfloat16, .narrow = narrow_bfloat16},
    .largest_half = largest_half,
};
