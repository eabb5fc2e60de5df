// SPDX-License-Identifier: Apache-2.0
// AVX-512 F and BW: 16 words at once.
#if defined(__x86_64__)
#define LANES 16
#define SIMD __attribute__((target("avx2,avx512f,avx512bw")))
#include "kernels/vectors.h"

#include <immintrin.h>

#define X(name) _mm512_##name
#define ANY __m512i

// Restores the order of lanes after a pack of two vectors.
SIMD static inline __m512i longs_in_order(__m512i packed) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}

// The same for a pack of four vectors.
SIMD static inline __m512i words_in_order(__m512i packed) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, packed);
}

#include "kernels/vectors_x86.h"

SIMD static inline bool any_bit(words vector) {
    return _mm512_test_epi32_mask((__m512i)vector, (__m512i)vector) != 0;
}

SIMD static inline uint32_t largest_word(words vector) {
    return _mm512_reduce_max_epu32((__m512i)vector);
}

SIMD static inline words largest_of_halves(words one, words other) {
    return larger_words((words)_mm512_shuffle_i32x4((__m512i)one, (__m512i)other, 0x88),
                        (words)_mm512_shuffle_i32x4((__m512i)one, (__m512i)other, 0xDD));
}

SIMD static inline words largest_of_each(const words *vectors) {
    const words first = largest_of_halves(largest_of_four(vectors), largest_of_four(vectors + 4));
    return largest_of_halves(first, largest_of_halves(largest_of_four(vectors + 8), largest_of_four(vectors + 12)));
}

SIMD static inline void store_lowest_bytes(uint8_t *to, words vector) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)vector));
}

SIMD static inline void widen_shorts(shorts lanes, integers *parts) {
    parts[0] = (integers)_mm512_cvtepi16_epi32(_mm512_castsi512_si256((__m512i)lanes));
    parts[1] = (integers)_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64((__m512i)lanes, 1));
}

SIMD static inline void widen_bytes(bytes lanes, integers *parts) {
    parts[0] = (integers)_mm512_cvtepi8_epi32(_mm512_castsi512_si128((__m512i)lanes));
    parts[1] = (integers)_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32((__m512i)lanes, 1));
    parts[2] = (integers)_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32((__m512i)lanes, 2));
    parts[3] = (integers)_mm512_cvtepi8_epi32(_mm512_extracti32x4_epi32((__m512i)lanes, 3));
}

SIMD static inline words load_wide(const uint16_t *from) {
    return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}

SIMD static inline floats load_float16(const uint16_t *from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

SIMD static inline void store_float16(uint16_t *to, floats values) {
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

SIMD static inline uint16_t largest_lane(halves lanes) {
    const __m256i low = _mm512_castsi512_si256((__m512i)lanes), high = _mm512_extracti64x4_epi64((__m512i)lanes, 1);
    const __m256i larger = _mm256_max_epu16(low, high);
    const __m128i largest = _mm_max_epu16(_mm256_castsi256_si128(larger), _mm256_extracti128_si256(larger, 1));
    // There is an instruction for the least of all lanes.
    return (uint16_t)~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(largest, _mm_set1_epi16(-1))));
}

#define KERNELS kernels_avx512
#define NAME "avx512"
#define REST kernels_avx2
#include "kernels/vector_loops.h"
#else
typedef int no_avx512; // an empty file is not C
#endif
