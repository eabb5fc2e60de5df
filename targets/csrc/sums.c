// SPDX-License-Identifier: Apache-2.0
#include "sums.h"

#include <stdlib.h>
#include <string.h>

#include "wire/bytes.h"

static void add_portable(uint8_t *sums, const uint8_t *values, size_t size) {
    for (size_t at = 0; at < size; at += 4)
        store_32(sums + at, load_32(sums + at) + load_32(values + at));
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void add_avx2(uint8_t *sums, const uint8_t *values, size_t size) {
    const __m256i swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203));
    for (size_t at = 0; at < size; at += 32) {
        __m256i *sum = (__m256i *)(void *)(sums + at);
        __m256i value = _mm256_loadu_si256((const __m256i *)(const void *)(values + at));
        __m256i total = _mm256_add_epi32(_mm256_shuffle_epi8(*sum, swap), _mm256_shuffle_epi8(value, swap));
        *sum = _mm256_shuffle_epi8(total, swap);
    }
}

__attribute__((target("avx512f,avx512bw"))) static void add_avx512(uint8_t *sums, const uint8_t *values, size_t size) {
    const __m512i swap = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203));
    for (size_t at = 0; at < size; at += 64) {
        __m512i *sum = (__m512i *)(void *)(sums + at);
        __m512i value = _mm512_loadu_si512(values + at);
        __m512i total = _mm512_add_epi32(_mm512_shuffle_epi8(*sum, swap), _mm512_shuffle_epi8(value, swap));
        *sum = _mm512_shuffle_epi8(total, swap);
    }
}
#endif

add_values_fn *sums_named(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (strcmp(name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? add_avx512 : NULL;
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") ? add_avx2 : NULL;
#endif
    return strcmp(name, "portable") == 0 ? add_portable : NULL;
}

add_values_fn *sums_choose(void) {
    static const char *const names[] = {"avx512", "avx2", "portable"};
    const char *wanted = getenv("P4REDUCE_SIMD");
    add_values_fn *found = wanted != NULL ? sums_named(wanted) : NULL;
    for (size_t at = 0; found == NULL; at++)
        found = sums_named(names[at]);
    return found;
}
