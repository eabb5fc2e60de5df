// SPDX-License-Identifier: Apache-2.0
// AVX2 and F16C: 8 words at once.
#if defined(__x86_64__)
#define LANES 8
#define SIMD __attribute__((target("avx2,f16c")))
#include "kernels/vectors.h"

#include <immintrin.h>

#define X(name) _mm256_##name
#define ANY __m256i

// Restores the order of lanes after a pack of two vectors.
SIMD static inline __m256i longs_in_order(__m256i packed) {
    return _mm256_permute4x64_epi64(packed, 0xD8);
}

// The same for a pack of four vectors.
SIMD static inline __m256i words_in_order(__m256i packed) {
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#include "kernels/vectors_x86.h"

SIMD static inline bool any_bit(words vector) {
    return !_mm256_testz_si256((__m256i)vector, (__m256i)vector);
}

SIMD static inline uint32_t largest_word(words vector) {
    const __m128i low = _mm256_castsi256_si128((__m256i)vector), high = _mm256_extracti128_si256((__m256i)vector, 1);
    const __m128i four = _mm_max_epu32(low, high), two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_srli_epi64(two, 32)));
}

SIMD static inline words largest_of_each(const words *vectors) {
    const __m256i first = (__m256i)largest_of_four(vectors), second = (__m256i)largest_of_four(vectors + 4);
    return larger_words((words)_mm256_permute2x128_si256(first, second, 0x20),
                        (words)_mm256_permute2x128_si256(first, second, 0x31));
}

SIMD static inline void store_lowest_bytes(uint8_t *to, words vector) {
    const __m128i low = _mm256_castsi256_si128((__m256i)vector), high = _mm256_extracti128_si256((__m256i)vector, 1);
    const __m128i packed = _mm_packus_epi32(low, high);
    _mm_storel_epi64((__m128i *)to, _mm_packus_epi16(packed, packed));
}

SIMD static inline void widen_shorts(shorts lanes, integers *parts) {
    parts[0] = (integers)_mm256_cvtepi16_epi32(_mm256_castsi256_si128((__m256i)lanes));
    parts[1] = (integers)_mm256_cvtepi16_epi32(_mm256_extracti128_si256((__m256i)lanes, 1));
}

SIMD static inline void widen_bytes(bytes lanes, integers *parts) {
    const __m128i low = _mm256_castsi256_si128((__m256i)lanes), high = _mm256_extracti128_si256((__m256i)lanes, 1);
    parts[0] = (integers)_mm256_cvtepi8_epi32(low);
    parts[1] = (integers)_mm256_cvtepi8_epi32(_mm_srli_si128(low, 8));
    parts[2] = (integers)_mm256_cvtepi8_epi32(high);
    parts[3] = (integers)_mm256_cvtepi8_epi32(_mm_srli_si128(high, 8));
}

SIMD static inline words load_wide(const uint16_t *from) {
    return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}

SIMD static inline floats load_float16(const uint16_t *from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

SIMD static inline void store_float16(uint16_t *to, floats values) {
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}

SIMD static inline uint16_t largest_lane(halves lanes) {
    const __m128i low = _mm256_castsi256_si128((__m256i)lanes), high = _mm256_extracti128_si256((__m256i)lanes, 1);
    // There is an instruction for the least of all lanes.
    const __m128i inverted = _mm_xor_si128(_mm_max_epu16(low, high), _mm_set1_epi16(-1));
    return (uint16_t)~_mm_cvtsi128_si32(_mm_minpos_epu16(inverted));
}

#define KERNELS kernels_avx2
#define NAME "avx2"
#define REST kernels_portable
#include "kernels/vector_loops.h"
#else
typedef int no_avx2; // an empty file is not C
#endif
