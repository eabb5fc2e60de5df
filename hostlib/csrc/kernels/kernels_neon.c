// SPDX-License-Identifier: Apache-2.0
// NEON of 64-bit ARM: 4 words at once.
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define LANES 4
#define SIMD
#include "kernels/vectors.h"

#include <arm_neon.h>

SIMD static inline words reversed_bytes(words vector) {
    return (words)vrev32q_u8((uint8x16_t)vector);
}

SIMD static inline words larger_words(words one, words other) {
    return (words)vmaxq_u32((uint32x4_t)one, (uint32x4_t)other);
}

SIMD static inline halves larger_halves(halves one, halves other) {
    return (halves)vmaxq_u16((uint16x8_t)one, (uint16x8_t)other);
}

SIMD static inline integers rounded(floats values) {
    return (integers)vcvtnq_s32_f32((float32x4_t)values);
}

SIMD static inline uint32_t largest_word(words vector) {
    return vmaxvq_u32((uint32x4_t)vector);
}

SIMD static inline bool any_bit(words vector) {
    return largest_word(vector) != 0;
}

SIMD static inline words largest_of_each(const words *vectors) {
    const uint32x4_t first = vpmaxq_u32((uint32x4_t)vectors[0], (uint32x4_t)vectors[1]);
    return (words)vpmaxq_u32(first, vpmaxq_u32((uint32x4_t)vectors[2], (uint32x4_t)vectors[3]));
}

SIMD static inline void store_lowest_bytes(uint8_t *to, words vector) {
    const uint16x4_t low = vmovn_u32((uint32x4_t)vector);
    vst1_lane_u32((void *)to, vreinterpret_u32_u8(vmovn_u16(vcombine_u16(low, low))), 0);
}

SIMD static inline shorts packed_shorts(integers one, integers other) {
    return (shorts)vcombine_s16(vqmovn_s32((int32x4_t)one), vqmovn_s32((int32x4_t)other));
}

SIMD static inline halves packed_halves(words one, words other) {
    return (halves)vcombine_u16(vmovn_u32((uint32x4_t)one), vmovn_u32((uint32x4_t)other));
}

SIMD static inline bytes packed_bytes(const integers *parts) {
    const int16x8_t low = (int16x8_t)packed_shorts(parts[0], parts[1]);
    return (bytes)vcombine_s8(vqmovn_s16(low), vqmovn_s16((int16x8_t)packed_shorts(parts[2], parts[3])));
}

SIMD static inline shorts clamped_shorts(shorts values, int limit) {
    return (shorts)vmaxq_s16(vminq_s16((int16x8_t)values, vdupq_n_s16((int16_t)limit)), vdupq_n_s16((int16_t)-limit));
}

SIMD static inline bytes clamped_bytes(bytes values, int limit) {
    return (bytes)vmaxq_s8(vminq_s8((int8x16_t)values, vdupq_n_s8((int8_t)limit)), vdupq_n_s8((int8_t)-limit));
}

SIMD static inline void widen_shorts(shorts lanes, integers *parts) {
    parts[0] = (integers)vmovl_s16(vget_low_s16((int16x8_t)lanes));
    parts[1] = (integers)vmovl_s16(vget_high_s16((int16x8_t)lanes));
}

SIMD static inline void widen_bytes(bytes lanes, integers *parts) {
    widen_shorts((shorts)vmovl_s8(vget_low_s8((int8x16_t)lanes)), parts);
    widen_shorts((shorts)vmovl_s8(vget_high_s8((int8x16_t)lanes)), parts + 2);
}

SIMD static inline words load_wide(const uint16_t *from) {
    return (words)vmovl_u16(vld1_u16(from));
}

SIMD static inline floats load_float16(const uint16_t *from) {
    return (floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}

SIMD static inline void store_float16(uint16_t *to, floats values) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)values)));
}

SIMD static inline uint16_t largest_lane(halves lanes) {
    return vmaxvq_u16((uint16x8_t)lanes);
}

#define KERNELS kernels_neon
#define NAME "neon"
#define REST kernels_portable
#include "kernels/vector_loops.h"
#else
typedef int no_neon; // an empty file is not C
#endif
