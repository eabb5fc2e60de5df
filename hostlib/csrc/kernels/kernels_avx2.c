// SPDX-License-Identifier: Apache-2.0
// AVX2: 8 values at once; the rest of a block as the portable form does it.
#if defined(__x86_64__)
#include "kernels/kernels.h"

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define LANES 8
#define LINE_VALUES 16 // of the cache's

AVX2 static inline __m256i reversed_bytes(__m256i words) {
    const __m256i order = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, //
                                           3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
    return _mm256_shuffle_epi8(words, order);
}

// A block's words, turned by one bit so that their order is that of magnitudes and the sign comes last: the largest of
// each lane. 1 then is a -0 among zeros. A block's rest is not looked at.
AVX2 static inline __attribute__((always_inline)) __m256i largest_of(const uint32_t *words, size_t block_size) {
    __m256i largest = _mm256_setzero_si256();
    for (size_t i = 0; i + LANES <= block_size; i += LANES) {
        __m256i word = _mm256_loadu_si256((const __m256i *)(words + i));
        __m256i turned = _mm256_or_si256(_mm256_add_epi32(word, word), _mm256_srli_epi32(word, 31));
        largest = _mm256_max_epu32(largest, turned);
    }
    return largest;
}

AVX2 static inline __m256i max_of_pair(__m256i one, __m256i other) {
    return _mm256_max_epu32(_mm256_unpacklo_epi32(one, other), _mm256_unpackhi_epi32(one, other));
}

AVX2 static inline __m256i max_of_pairs(__m256i two, __m256i others) {
    return _mm256_max_epu32(_mm256_unpacklo_epi64(two, others), _mm256_unpackhi_epi64(two, others));
}

// Four blocks: in each half of the result, the largest words that the blocks have there.
AVX2 static inline __attribute__((always_inline)) __m256i largest_of_four(const uint32_t *words, size_t block_size) {
    __m256i low = max_of_pair(largest_of(words, block_size), largest_of(words + block_size, block_size));
    words += 2 * block_size;
    __m256i high = max_of_pair(largest_of(words, block_size), largest_of(words + block_size, block_size));
    return max_of_pairs(low, high);
}

// Eight blocks: the largest word of each.
AVX2 static inline __attribute__((always_inline)) __m256i largest_of_eight(const uint32_t *words, size_t block_size) {
    __m256i first = largest_of_four(words, block_size), second = largest_of_four(words + 4 * block_size, block_size);
    return _mm256_max_epu32(_mm256_permute2x128_si256(first, second, 0x20),
                            _mm256_permute2x128_si256(first, second, 0x31));
}

// The lowest byte of each word.
AVX2 static inline uint64_t lowest_bytes(__m256i words) {
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
}

AVX2 static inline __attribute__((always_inline)) bool scan_blocks(const uint32_t *words, size_t blocks,
                                                                   size_t block_size, uint8_t *exponents) {
    const __m256i one = _mm256_set1_epi32(1), two = _mm256_set1_epi32(2);
    __m256i negative_zeros = _mm256_setzero_si256();
    size_t block = 0;
    for (; block + LANES <= blocks; block += LANES, words += LANES * block_size) {
        // Processors do not look beyond a page by themselves.
        for (size_t i = 0; i < LANES * block_size; i += 2 * LANES)
            _mm_prefetch((const char *)(words + i) + SCAN_AHEAD, _MM_HINT_T1);
        __m256i largest = largest_of_eight(words, block_size);
        __m256i at_least_one = _mm256_srli_epi32(_mm256_min_epu32(largest, two), 1); // where the block is not zero
        uint64_t bytes = lowest_bytes(_mm256_max_epu32(_mm256_srli_epi32(largest, 24), at_least_one));
        memcpy(exponents + block, &bytes, sizeof bytes);
        negative_zeros = _mm256_or_si256(negative_zeros, _mm256_cmpeq_epi32(largest, one));
    }
    bool found = !_mm256_testz_si256(negative_zeros, negative_zeros);
    return kernels_portable.scan_float32(words, blocks - block, block_size, exponents + block) || found;
}

AVX2 static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    if (block_size % LANES != 0)
        return kernels_portable.scan_float32(values, blocks, block_size, exponents);
    // The usual size, known to the compiler.
    return block_size == 64 ? scan_blocks(values, blocks, 64, exponents)
                            : scan_blocks(values, blocks, block_size, exponents);
}

AVX2 static void scan_int32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        __m256i any = _mm256_setzero_si256();
        size_t i = 0;
        for (; i + LANES <= block_size; i += LANES)
            any = _mm256_or_si256(any, _mm256_loadu_si256((const __m256i *)(words + i)));
        uint32_t rest = 0;
        for (; i < block_size; i++)
            rest |= words[i];
        exponents[block] = rest || !_mm256_testz_si256(any, any) ? BLOCK_NOT_FINITE : BLOCK_ZERO;
    }
}

AVX2 static void quantise(const void *values, size_t count, int up, uint8_t *wire) {
    const float *from = values;
    const int first_factor = first_power(up);
    const __m256 scale = _mm256_set1_ps(float_power(up - first_factor));
    size_t i = 0;
    if (first_factor == 0) {
        for (; i + LANES <= count; i += LANES) {
            // Where a product is subnormal it is not exact, but then its rounded value is 0 anyway.
            __m256i quanta = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i), scale));
            _mm256_storeu_si256((__m256i *)(wire + 4 * i), reversed_bytes(quanta));
        }
    } else {
        const __m256 before = _mm256_set1_ps(float_power(first_factor));
        for (; i + LANES <= count; i += LANES) {
            __m256 scaled = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(from + i), before), scale);
            _mm256_storeu_si256((__m256i *)(wire + 4 * i), reversed_bytes(_mm256_cvtps_epi32(scaled)));
        }
    }
    kernels_portable.quantise(from + i, count - i, up, wire + 4 * i);
}

AVX2 static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const __m256 scale = _mm256_set1_ps(float_power(-up));
        for (; i + LANES <= count; i += LANES) {
            __m256i sums = reversed_bytes(_mm256_loadu_si256((const __m256i *)(wire + 4 * i)));
            _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale));
        }
    }
    kernels_portable.dequantise(wire + 4 * i, count - i, up, to + i);
}

static void settle(void) {
    _mm_sfence();
}

AVX2 static void dequantise_to_memory(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const size_t in_line = (uintptr_t)to / sizeof *to % LINE_VALUES, first = in_line > 0 ? LINE_VALUES - in_line : 0;
    size_t i = first < count ? first : count;
    if (!rounds_once_in_float32(up) || (uintptr_t)to % sizeof *to != 0) {
        dequantise(wire, count, up, to);
        return;
    }
    dequantise(wire, i, up, to);
    const __m256 scale = _mm256_set1_ps(float_power(-up));
    for (; i + LINE_VALUES <= count; i += LINE_VALUES)
        for (size_t half = i; half < i + LINE_VALUES; half += LANES) {
            __m256i sums = reversed_bytes(_mm256_loadu_si256((const __m256i *)(wire + 4 * half)));
            _mm256_stream_ps(to + half, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale));
        }
    dequantise(wire + 4 * i, count - i, up, to + i);
}

AVX2 static inline __m256i quanta(const float *from, __m256 before, __m256 scale) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(from), before), scale));
}

// Integers beside each other as words that add up: what is negative borrows from the next.
AVX2 static inline void store_words(uint8_t *wire, __m256i lanes, uint32_t bias) {
    const __m256i top = _mm256_set1_epi32((int)bias);
    __m256i words = _mm256_sub_epi32(_mm256_xor_si256(lanes, top), top);
    _mm256_storeu_si256((__m256i *)wire, reversed_bytes(words));
}

AVX2 static inline __m256i load_lanes(const uint8_t *wire, uint32_t bias) {
    const __m256i top = _mm256_set1_epi32((int)bias);
    __m256i words = reversed_bytes(_mm256_loadu_si256((const __m256i *)wire));
    return _mm256_xor_si256(_mm256_add_epi32(words, top), top);
}

AVX2 static void quantise_16(const void *values, size_t count, int up, int limit, uint8_t *wire) {
    const float *from = values;
    const __m256 before = _mm256_set1_ps(float_power(first_power(up)));
    const __m256 scale = _mm256_set1_ps(float_power(up - first_power(up)));
    const __m256i most = _mm256_set1_epi16((short)limit), least = _mm256_set1_epi16((short)-limit);
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        __m256i pairs = _mm256_packs_epi32(quanta(from + i, before, scale), quanta(from + i + LANES, before, scale));
        __m256i lanes = _mm256_permute4x64_epi64(pairs, 0xD8);
        store_words(wire + 2 * i, _mm256_max_epi16(_mm256_min_epi16(lanes, most), least), BIAS_16);
    }
    kernels_portable.quantise_16(from + i, count - i, up, limit, wire + 2 * i);
}

AVX2 static inline __m256i mixed(__m256i x) {
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), _mm256_set1_epi32((int)NOISE_FIRST));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), _mm256_set1_epi32((int)NOISE_SECOND));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

AVX2 static inline __m256i rounded(__m256i fine, __m256i noise) {
    __m256i bits = _mm256_srli_epi32(mixed(noise), 32 - NOISE_SHIFT);
    return _mm256_srai_epi32(_mm256_add_epi32(fine, bits), NOISE_SHIFT);
}

AVX2 static void quantise_8(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire) {
    const float *from = values;
    const __m256 before = _mm256_set1_ps(float_power(first_power(up)));
    const __m256 scale = _mm256_set1_ps(float_power(up - first_power(up)));
    const __m256i most = _mm256_set1_epi8((char)limit), least = _mm256_set1_epi8((char)-limit);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), step = _mm256_set1_epi32((int)(LANES * NOISE_STEP));
    __m256i each = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)NOISE_STEP));
    each = _mm256_add_epi32(each, _mm256_set1_epi32((int)noise));
    size_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        __m256i some[4];
        for (int part = 0; part < 4; part++, each = _mm256_add_epi32(each, step))
            some[part] = rounded(quanta(from + i + part * LANES, before, scale), each);
        __m256i mingled =
            _mm256_packs_epi16(_mm256_packs_epi32(some[0], some[1]), _mm256_packs_epi32(some[2], some[3]));
        __m256i lanes = _mm256_permutevar8x32_epi32(mingled, order);
        store_words(wire + i, _mm256_max_epi8(_mm256_min_epi8(lanes, most), least), BIAS_8);
    }
    kernels_portable.quantise_8(from + i, count - i, up, limit, noise + (uint32_t)i * NOISE_STEP, wire + i);
}

AVX2 static inline void store_values(float *to, __m256i sums, __m256 scale) {
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale));
}

AVX2 static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const __m256 scale = _mm256_set1_ps(float_power(-up));
        for (; i + 2 * LANES <= count; i += 2 * LANES) {
            __m256i lanes = load_lanes(wire + 2 * i, BIAS_16);
            store_values(to + i, _mm256_cvtepi16_epi32(_mm256_castsi256_si128(lanes)), scale);
            store_values(to + i + LANES, _mm256_cvtepi16_epi32(_mm256_extracti128_si256(lanes, 1)), scale);
        }
    }
    kernels_portable.dequantise_16(wire + 2 * i, count - i, up, to + i);
}

AVX2 static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const __m256 scale = _mm256_set1_ps(float_power(-up));
        for (; i + 4 * LANES <= count; i += 4 * LANES) {
            __m256i lanes = load_lanes(wire + i, BIAS_8);
            __m128i low = _mm256_castsi256_si128(lanes), high = _mm256_extracti128_si256(lanes, 1);
            store_values(to + i, _mm256_cvtepi8_epi32(low), scale);
            store_values(to + i + LANES, _mm256_cvtepi8_epi32(_mm_srli_si128(low, 8)), scale);
            store_values(to + i + 2 * LANES, _mm256_cvtepi8_epi32(high), scale);
            store_values(to + i + 3 * LANES, _mm256_cvtepi8_epi32(_mm_srli_si128(high, 8)), scale);
        }
    }
    kernels_portable.dequantise_8(wire + i, count - i, up, to + i);
}

AVX2 static void swap(const void *from, size_t count, void *to) {
    const uint8_t *source = from;
    uint8_t *target = to;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m256i words = _mm256_loadu_si256((const __m256i *)(source + 4 * i));
        _mm256_storeu_si256((__m256i *)(target + 4 * i), reversed_bytes(words));
    }
    kernels_portable.swap(source + 4 * i, count - i, target + 4 * i);
}

AVX2 static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m256i words = reversed_bytes(_mm256_loadu_si256((const __m256i *)(wire + 4 * i)));
        __m256i sum = reversed_bytes(_mm256_loadu_si256((const __m256i *)(sums + 4 * i)));
        _mm256_storeu_si256((__m256i *)(sums + 4 * i), reversed_bytes(_mm256_add_epi32(sum, words)));
    }
    kernels_portable.add(wire + 4 * i, count - i, sums + 4 * i);
}

AVX2 static void sum(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                     size_t places) {
    const __m256 scale = _mm256_set1_ps(float_power(up)), back = _mm256_set1_ps(float_power(-up));
    size_t i = begin;
    for (; i + 2 * LANES <= end; i += 2 * LANES) {
        __m256i low = _mm256_setzero_si256(), high = low;
        for (size_t rank = 0; rank < ranks; rank++) {
            const float *values = from[rank] + i;
            // As in quantise.
            low = _mm256_add_epi32(low, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), scale)));
            high = _mm256_add_epi32(high, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + LANES), scale)));
        }
        const __m256 first = _mm256_mul_ps(_mm256_cvtepi32_ps(low), back);
        const __m256 second = _mm256_mul_ps(_mm256_cvtepi32_ps(high), back);
        for (size_t place = 0; place < places; place++) {
            _mm256_storeu_ps(to[place] + i, first);
            _mm256_storeu_ps(to[place] + i + LANES, second);
        }
    }
    kernels_portable.sum(from, ranks, i, end, up, to, places);
}

const struct kernels kernels_avx2 = {
    .name = "avx2",
    .scan_float32 = scan_float32,
    .scan_int32 = scan_int32,
    .quantise = quantise,
    .dequantise = dequantise,
    .dequantise_to_memory = dequantise_to_memory,
    .settle = settle,
    .quantise_16 = quantise_16,
    .quantise_8 = quantise_8,
    .dequantise_16 = dequantise_16,
    .dequantise_8 = dequantise_8,
    .swap = swap,
    .add = add,
    .sum = sum,
    .halves = &halves_avx2,
};
#else
typedef int no_avx2; // an empty file is not C
#endif
