// SPDX-License-Identifier: Apache-2.0
// NEON of 64-bit ARM: 4 values at once; the rest of a block as the portable form does it.
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#include "kernels.h"

#include <arm_neon.h>

#define LANES 4

static inline uint32x4_t load(const void *from) {
    return vreinterpretq_u32_u8(vld1q_u8(from));
}

static inline void store(void *to, uint32x4_t words) {
    vst1q_u8(to, vreinterpretq_u8_u32(words));
}

static inline uint32x4_t reversed_bytes(uint32x4_t words) {
    return vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(words)));
}

static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    const uint32x4_t magnitudes = vdupq_n_u32(0x7FFFFFFF);
    uint32_t negative_zeros = 0;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        uint32x4_t largest = vdupq_n_u32(0), more = largest, signs = largest;
        size_t i = 0;
        for (; i + 2 * LANES <= block_size; i += 2 * LANES) {
            uint32x4_t one = load(words + i), two = load(words + i + LANES);
            largest = vmaxq_u32(largest, vandq_u32(one, magnitudes));
            more = vmaxq_u32(more, vandq_u32(two, magnitudes));
            signs = vorrq_u32(signs, vorrq_u32(one, two));
        }
        uint32_t magnitude = vmaxvq_u32(vmaxq_u32(largest, more)), all_signs = vmaxvq_u32(signs);
        for (; i < block_size; i++) {
            uint32_t next = words[i] & 0x7FFFFFFF;
            magnitude = magnitude > next ? magnitude : next;
            all_signs |= words[i];
        }
        exponents[block] = exponent_of(magnitude);
        negative_zeros |= magnitude == 0 ? all_signs : 0;
    }
    return negative_zeros != 0;
}

static void scan_int32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        uint32x4_t any = vdupq_n_u32(0);
        size_t i = 0;
        for (; i + LANES <= block_size; i += LANES)
            any = vorrq_u32(any, load(words + i));
        uint32_t all = vmaxvq_u32(any);
        for (; i < block_size; i++)
            all |= words[i];
        exponents[block] = all ? BLOCK_NOT_FINITE : BLOCK_ZERO;
    }
}

static void quantise(const void *values, size_t count, int up, uint8_t *wire) {
    const float *from = values;
    const int first_factor = first_power(up);
    const float32x4_t scale = vdupq_n_f32(float_power(up - first_factor));
    const float32x4_t before = vdupq_n_f32(float_power(first_factor));
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        float32x4_t scaled = vmulq_f32(vmulq_f32(vld1q_f32(from + i), before), scale);
        store(wire + 4 * i, reversed_bytes(vreinterpretq_u32_s32(vcvtnq_s32_f32(scaled))));
    }
    kernels_portable.quantise(from + i, count - i, up, wire + 4 * i);
}

static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const float32x4_t scale = vdupq_n_f32(float_power(-up));
        for (; i + LANES <= count; i += LANES) {
            int32x4_t sums = vreinterpretq_s32_u32(reversed_bytes(load(wire + 4 * i)));
            vst1q_f32(to + i, vmulq_f32(vcvtq_f32_s32(sums), scale));
        }
    }
    kernels_portable.dequantise(wire + 4 * i, count - i, up, to + i);
}

static void swap(const void *from, size_t count, void *to) {
    const uint8_t *source = from;
    uint8_t *target = to;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(target + 4 * i, reversed_bytes(load(source + 4 * i)));
    kernels_portable.swap(source + 4 * i, count - i, target + 4 * i);
}

const struct kernels kernels_neon = {
    .name = "neon",
    .scan_float32 = scan_float32,
    .scan_int32 = scan_int32,
    .quantise = quantise,
    .dequantise = dequantise,
    .swap = swap,
};
#else
typedef int no_neon; // an empty file is not C
#endif
