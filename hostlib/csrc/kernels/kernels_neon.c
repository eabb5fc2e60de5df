// SPDX-License-Identifier: Apache-2.0
// NEON of 64-bit ARM: 4 values at once; the rest of a block as the portable form does it.
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#include "kernels/kernels.h"

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

static inline int32x4_t quanta(const float *from, float32x4_t before, float32x4_t scale) {
    return vcvtnq_s32_f32(vmulq_f32(vmulq_f32(vld1q_f32(from), before), scale));
}

// Integers beside each other as words that add up: what is negative borrows from the next.
static inline void store_words(uint8_t *wire, uint32x4_t lanes, uint32_t bias) {
    const uint32x4_t top = vdupq_n_u32(bias);
    store(wire, reversed_bytes(vsubq_u32(veorq_u32(lanes, top), top)));
}

static inline uint32x4_t load_lanes(const uint8_t *wire, uint32_t bias) {
    const uint32x4_t top = vdupq_n_u32(bias);
    return veorq_u32(vaddq_u32(reversed_bytes(load(wire)), top), top);
}

static inline void store_values(float *to, int16x4_t sums, float32x4_t scale) {
    vst1q_f32(to, vmulq_f32(vcvtq_f32_s32(vmovl_s16(sums)), scale));
}

static void quantise_16(const void *values, size_t count, int up, int limit, uint8_t *wire) {
    const float *from = values;
    const float32x4_t before = vdupq_n_f32(float_power(first_power(up)));
    const float32x4_t scale = vdupq_n_f32(float_power(up - first_power(up)));
    const int16x8_t most = vdupq_n_s16((int16_t)limit), least = vdupq_n_s16((int16_t)-limit);
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        int16x8_t lanes = vcombine_s16(vqmovn_s32(quanta(from + i, before, scale)),
                                       vqmovn_s32(quanta(from + i + LANES, before, scale)));
        store_words(wire + 2 * i, vreinterpretq_u32_s16(vmaxq_s16(vminq_s16(lanes, most), least)), BIAS_16);
    }
    kernels_portable.quantise_16(from + i, count - i, up, limit, wire + 2 * i);
}

static inline uint32x4_t mixed(uint32x4_t x) {
    x = vmulq_n_u32(veorq_u32(x, vshrq_n_u32(x, 16)), NOISE_FIRST);
    x = vmulq_n_u32(veorq_u32(x, vshrq_n_u32(x, 15)), NOISE_SECOND);
    return veorq_u32(x, vshrq_n_u32(x, 16));
}

static inline int32x4_t rounded(int32x4_t fine, uint32x4_t noise) {
    int32x4_t bits = vreinterpretq_s32_u32(vshrq_n_u32(mixed(noise), 32 - NOISE_SHIFT));
    return vshrq_n_s32(vaddq_s32(fine, bits), NOISE_SHIFT);
}

static void quantise_8(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire) {
    const float *from = values;
    const float32x4_t before = vdupq_n_f32(float_power(first_power(up)));
    const float32x4_t scale = vdupq_n_f32(float_power(up - first_power(up)));
    const int8x16_t most = vdupq_n_s8((int8_t)limit), least = vdupq_n_s8((int8_t)-limit);
    const uint32x4_t step = vdupq_n_u32(LANES * NOISE_STEP);
    const uint32_t four[LANES] = {noise, noise + NOISE_STEP, noise + 2 * NOISE_STEP, noise + 3 * NOISE_STEP};
    uint32x4_t each = vld1q_u32(four);
    size_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        int16x4_t some[4];
        for (int part = 0; part < 4; part++, each = vaddq_u32(each, step))
            some[part] = vqmovn_s32(rounded(quanta(from + i + part * LANES, before, scale), each));
        int8x16_t lanes = vcombine_s8(vqmovn_s16(vcombine_s16(some[0], some[1])),
                                      vqmovn_s16(vcombine_s16(some[2], some[3])));
        store_words(wire + i, vreinterpretq_u32_s8(vmaxq_s8(vminq_s8(lanes, most), least)), BIAS_8);
    }
    kernels_portable.quantise_8(from + i, count - i, up, limit, noise + (uint32_t)i * NOISE_STEP, wire + i);
}

static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const float32x4_t scale = vdupq_n_f32(float_power(-up));
        for (; i + 2 * LANES <= count; i += 2 * LANES) {
            int16x8_t lanes = vreinterpretq_s16_u32(load_lanes(wire + 2 * i, BIAS_16));
            store_values(to + i, vget_low_s16(lanes), scale);
            store_values(to + i + LANES, vget_high_s16(lanes), scale);
        }
    }
    kernels_portable.dequantise_16(wire + 2 * i, count - i, up, to + i);
}

static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const float32x4_t scale = vdupq_n_f32(float_power(-up));
        for (; i + 4 * LANES <= count; i += 4 * LANES) {
            int8x16_t lanes = vreinterpretq_s8_u32(load_lanes(wire + i, BIAS_8));
            int16x8_t low = vmovl_s8(vget_low_s8(lanes)), high = vmovl_s8(vget_high_s8(lanes));
            store_values(to + i, vget_low_s16(low), scale);
            store_values(to + i + LANES, vget_high_s16(low), scale);
            store_values(to + i + 2 * LANES, vget_low_s16(high), scale);
            store_values(to + i + 3 * LANES, vget_high_s16(high), scale);
        }
    }
    kernels_portable.dequantise_8(wire + i, count - i, up, to + i);
}

static void swap(const void *from, size_t count, void *to) {
    const uint8_t *source = from;
    uint8_t *target = to;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(target + 4 * i, reversed_bytes(load(source + 4 * i)));
    kernels_portable.swap(source + 4 * i, count - i, target + 4 * i);
}

static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        uint32x4_t sum = reversed_bytes(load(sums + 4 * i));
        store(sums + 4 * i, reversed_bytes(vaddq_u32(sum, reversed_bytes(load(wire + 4 * i)))));
    }
    kernels_portable.add(wire + 4 * i, count - i, sums + 4 * i);
}

const struct kernels kernels_neon = {
    .name = "neon",
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
    .halves = &halves_neon,
};
#else
typedef int no_neon; // an empty file is not C
#endif
