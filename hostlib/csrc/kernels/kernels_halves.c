// SPDX-License-Identifier: Apache-2.0
// 16-bit floats: to float32 and back, and the largest of many, for each kind of processor; the rest of a vector as the
// portable form does it.
#include "kernels/kernels.h"

#include <string.h>

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

// float16 has 5 bits of exponent for float32's 8, and 10 of mantissa for its 23. What is subnormal is normal in float32.
static float widened_float16(uint16_t half) {
    const uint32_t magnitude = half & 0x7FFF, sign = (uint32_t)(half ^ magnitude) << 16;
    if (magnitude < 0x7C00)
        return float_of(sign | bits_of(float_of(magnitude << 13) * float_power(127 - 15)));
    const uint32_t quiet = magnitude > 0x7C00 ? UINT32_C(1) << 22 : 0; // as processors make NaNs
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

static uint16_t turned(uint16_t half) {
    return (uint16_t)(half << 1 | half >> 15);
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

static inline uint16_t larger(uint16_t one, uint16_t other) {
    return one > other ? one : other;
}

static uint16_t largest_of(const uint16_t *halves, size_t count) {
    uint16_t largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = larger(largest, turned(halves[i]));
    return largest;
}

const struct halves halves_portable = {
    .float16 = {.widen = widen_float16, .narrow = narrow_float16},
    .bfloat16 = {.widen = widen_bfloat16, .narrow = narrow_bfloat16},
    .largest = largest_of,
};

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,f16c")))
#define LANES 8

AVX2 static void widen_float16_avx2(const uint16_t *halves, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + i))));
    widen_float16(halves + i, count - i, values + i);
}

AVX2 static void narrow_float16_avx2(const float *values, size_t count, uint16_t *halves) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(halves + i), narrow);
    }
    narrow_float16(values + i, count - i, halves + i);
}

AVX2 static void widen_bfloat16_avx2(const uint16_t *halves, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(halves + i)));
        _mm256_storeu_si256((__m256i *)(values + i), _mm256_slli_epi32(words, 16));
    }
    widen_bfloat16(halves + i, count - i, values + i);
}

// In the lower half of each word.
AVX2 static inline __m256i rounded_bfloat16(const float *values) {
    const __m256 floats = _mm256_loadu_ps(values);
    const __m256i words = _mm256_castps_si256(floats), upper = _mm256_srli_epi32(words, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(words, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
}

AVX2 static void narrow_bfloat16_avx2(const float *values, size_t count, uint16_t *halves) {
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        __m256i pairs = _mm256_packus_epi32(rounded_bfloat16(values + i), rounded_bfloat16(values + i + LANES));
        _mm256_storeu_si256((__m256i *)(halves + i), _mm256_permute4x64_epi64(pairs, 0xD8));
    }
    narrow_bfloat16(values + i, count - i, halves + i);
}

AVX2 static uint16_t largest_of_avx2(const uint16_t *halves, size_t count) {
    __m256i largest = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        __m256i words = _mm256_loadu_si256((const __m256i *)(halves + i));
        __m256i turned_words = _mm256_or_si256(_mm256_add_epi16(words, words), _mm256_srli_epi16(words, 15));
        largest = _mm256_max_epu16(largest, turned_words);
    }
    __m128i most = _mm_max_epu16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    // There is an instruction for the least of all.
    uint16_t least = (uint16_t)_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1))));
    return larger((uint16_t)~least, largest_of(halves + i, count - i));
}

const struct halves halves_avx2 = {
    .float16 = {.widen = widen_float16_avx2, .narrow = narrow_float16_avx2},
    .bfloat16 = {.widen = widen_bfloat16_avx2, .narrow = narrow_bfloat16_avx2},
    .largest = largest_of_avx2,
};
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#include <arm_neon.h>

#define LANES 4

static void widen_float16_neon(const uint16_t *halves, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vst1q_f32(values + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + i))));
    widen_float16(halves + i, count - i, values + i);
}

static void narrow_float16_neon(const float *values, size_t count, uint16_t *halves) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vst1_u16(halves + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(values + i))));
    narrow_float16(values + i, count - i, halves + i);
}

static void widen_bfloat16_neon(const uint16_t *halves, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vst1q_f32(values + i, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(halves + i), 16)));
    widen_bfloat16(halves + i, count - i, values + i);
}

static void narrow_bfloat16_neon(const float *values, size_t count, uint16_t *halves) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const float32x4_t floats = vld1q_f32(values + i);
        const uint32x4_t words = vreinterpretq_u32_f32(floats), upper = vshrq_n_u32(words, 16);
        const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
        const uint32x4_t up = vaddq_u32(vaddq_u32(words, vdupq_n_u32(0x7FFF)), odd);
        const uint32x4_t number = vceqq_f32(floats, floats), quiet = vorrq_u32(upper, vdupq_n_u32(0x40));
        vst1_u16(halves + i, vmovn_u32(vbslq_u32(number, vshrq_n_u32(up, 16), quiet)));
    }
    narrow_bfloat16(values + i, count - i, halves + i);
}

static uint16_t largest_of_neon(const uint16_t *halves, size_t count) {
    uint16x8_t largest = vdupq_n_u16(0);
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        uint16x8_t words = vld1q_u16(halves + i);
        largest = vmaxq_u16(largest, vsriq_n_u16(vshlq_n_u16(words, 1), words, 15));
    }
    return larger(vmaxvq_u16(largest), largest_of(halves + i, count - i));
}

const struct halves halves_neon = {
    .float16 = {.widen = widen_float16_neon, .narrow = narrow_float16_neon},
    .bfloat16 = {.widen = widen_bfloat16_neon, .narrow = narrow_bfloat16_neon},
    .largest = largest_of_neon,
};
#endif
