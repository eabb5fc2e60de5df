// SPDX-License-Identifier: Apache-2.0
// Operations that AVX2 and AVX-512 have under the same names: X(add_ps) is _mm256_add_ps or _mm512_add_ps. Some of them
// work on each 128 bits separately, so the order of their results differs.
#include "kernels/vectors.h"

#include <immintrin.h>

#define STREAM(to, vector) X(stream_ps)(to, vector)

SIMD static inline words reversed_bytes(words vector) {
    static const uint32_t order[] = {0x00010203, 0x04050607, 0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607,
                                     0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607, 0x08090A0B, 0x0C0D0E0F,
                                     0x00010203, 0x04050607, 0x08090A0B, 0x0C0D0E0F};
    return (words)X(shuffle_epi8)((ANY)vector, (ANY)load_words(order));
}

SIMD static inline words larger_words(words one, words other) {
    return (words)X(max_epu32)((ANY)one, (ANY)other);
}

SIMD static inline halves larger_halves(halves one, halves other) {
    return (halves)X(max_epu16)((ANY)one, (ANY)other);
}

SIMD static inline integers rounded(floats values) {
    return (integers)X(cvtps_epi32)(values);
}

SIMD static inline words largest_of_pair(words one, words other) {
    return larger_words((words)X(unpacklo_epi32)((ANY)one, (ANY)other), (words)X(unpackhi_epi32)((ANY)one, (ANY)other));
}

// Returns, in each 128 bits, the largest words that each of four vectors has there.
SIMD static inline words largest_of_four(const words *vectors) {
    const ANY two = (ANY)largest_of_pair(vectors[0], vectors[1]), others = (ANY)largest_of_pair(vectors[2], vectors[3]);
    return larger_words((words)X(unpacklo_epi64)(two, others), (words)X(unpackhi_epi64)(two, others));
}

SIMD static inline shorts packed_shorts(integers one, integers other) {
    return (shorts)longs_in_order(X(packs_epi32)((ANY)one, (ANY)other));
}

SIMD static inline halves packed_halves(words one, words other) {
    return (halves)longs_in_order(X(packus_epi32)((ANY)one, (ANY)other));
}

SIMD static inline bytes packed_bytes(const integers *parts) {
    const ANY low = X(packs_epi32)((ANY)parts[0], (ANY)parts[1]), high = X(packs_epi32)((ANY)parts[2], (ANY)parts[3]);
    return (bytes)words_in_order(X(packs_epi16)(low, high));
}

SIMD static inline shorts clamped_shorts(shorts values, int limit) {
    const ANY most = X(set1_epi16)((short)limit), least = X(set1_epi16)((short)-limit);
    return (shorts)X(max_epi16)(X(min_epi16)((ANY)values, most), least);
}

SIMD static inline bytes clamped_bytes(bytes values, int limit) {
    const ANY most = X(set1_epi8)((char)limit), least = X(set1_epi8)((char)-limit);
    return (bytes)X(max_epi8)(X(min_epi8)((ANY)values, most), least);
}
