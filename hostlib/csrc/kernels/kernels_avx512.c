// SPDX-License-Identifier: Apache-2.0
// AVX-512 F and BW: 16 values at once, and the rest of a block under a mask.
#if defined(__x86_64__)
#include "kernels/kernels.h"

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define LANES 16

AVX512 static inline __mmask16 first(size_t count) {
    return (__mmask16)((1u << (count < LANES ? count : LANES)) - 1);
}

AVX512 static inline __m512i reversed_bytes(__m512i words) {
    const __m512i order = _mm512_set4_epi32(0x0C0D0E0F, 0x08090A0B, 0x04050607, 0x00010203);
    return _mm512_shuffle_epi8(words, order);
}

// To reverse the bytes of narrower vectors' words.
AVX512 static inline __m256i order_of_bytes(void) {
    return _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, //
                            3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
}

// A block's words, turned by one bit so that their order is that of magnitudes and the sign comes last: the largest of
// each lane. 1 then is a -0 among zeros.
AVX512 static inline __m512i largest_of(const uint32_t *words, size_t block_size) {
    __m512i largest = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + LANES <= block_size; i += LANES) {
        largest = _mm512_max_epu32(largest, _mm512_rol_epi32(_mm512_loadu_si512(words + i), 1));
    }
    if (i < block_size)
        largest =
            _mm512_max_epu32(largest, _mm512_rol_epi32(_mm512_maskz_loadu_epi32(first(block_size - i), words + i), 1));
    return largest;
}

AVX512 static inline __m512i max_of_pair(__m512i one, __m512i other) {
    return _mm512_max_epu32(_mm512_unpacklo_epi32(one, other), _mm512_unpackhi_epi32(one, other));
}

AVX512 static inline __m512i max_of_pairs(__m512i two, __m512i others) {
    return _mm512_max_epu32(_mm512_unpacklo_epi64(two, others), _mm512_unpackhi_epi64(two, others));
}

AVX512 static inline __m512i max_of_quarters(__m512i one, __m512i other) {
    return _mm512_max_epu32(_mm512_shuffle_i32x4(one, other, 0x88), _mm512_shuffle_i32x4(one, other, 0xDD));
}

// Four blocks: in each quarter of the result, the largest words that the blocks have there.
AVX512 static inline __m512i largest_of_four(const uint32_t *words, size_t block_size) {
    __m512i low = max_of_pair(largest_of(words, block_size), largest_of(words + block_size, block_size));
    words += 2 * block_size;
    __m512i high = max_of_pair(largest_of(words, block_size), largest_of(words + block_size, block_size));
    return max_of_pairs(low, high);
}

// Sixteen blocks: the largest word of each.
AVX512 static inline __m512i largest_of_sixteen(const uint32_t *words, size_t block_size) {
    __m512i first = largest_of_four(words, block_size), second = largest_of_four(words + 4 * block_size, block_size);
    __m512i third = largest_of_four(words + 8 * block_size, block_size);
    __m512i fourth = largest_of_four(words + 12 * block_size, block_size);
    return max_of_quarters(max_of_quarters(first, second), max_of_quarters(third, fourth));
}

AVX512 static inline __attribute__((always_inline)) bool scan_blocks(const uint32_t *words, size_t blocks,
                                                                     size_t block_size, uint8_t *exponents) {
    const __m512i one = _mm512_set1_epi32(1);
    bool negative_zeros = false;
    size_t block = 0;
    for (; block + LANES <= blocks; block += LANES, words += LANES * block_size) {
        // Processors do not look beyond a page by themselves.
        for (size_t i = 0; i < LANES * block_size; i += LANES)
            _mm_prefetch((const char *)(words + i) + SCAN_AHEAD, _MM_HINT_T1);
        __m512i largest = largest_of_sixteen(words, block_size);
        __mmask16 not_zero = _mm512_cmpgt_epu32_mask(largest, one);
        __m512i exponent = _mm512_srli_epi32(largest, 24);
        exponent = _mm512_mask_max_epu32(exponent, not_zero, exponent, one);
        _mm_storeu_si128((__m128i *)(exponents + block), _mm512_cvtepi32_epi8(exponent));
        negative_zeros |= _mm512_cmpeq_epu32_mask(largest, one) != 0;
    }
    for (; block < blocks; block++, words += block_size) {
        uint32_t largest = _mm512_reduce_max_epu32(largest_of(words, block_size));
        exponents[block] = exponent_of(largest >> 1);
        negative_zeros |= largest == 1;
    }
    return negative_zeros;
}

AVX512 static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    // The usual size, known to the compiler.
    return block_size == 64 ? scan_blocks(values, blocks, 64, exponents)
                            : scan_blocks(values, blocks, block_size, exponents);
}

AVX512 static void scan_int32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *words = values;
    for (size_t block = 0; block < blocks; block++, words += block_size) {
        __m512i any = _mm512_setzero_si512();
        size_t i = 0;
        for (; i + LANES <= block_size; i += LANES)
            any = _mm512_or_si512(any, _mm512_loadu_si512(words + i));
        if (i < block_size)
            any = _mm512_or_si512(any, _mm512_maskz_loadu_epi32(first(block_size - i), words + i));
        exponents[block] = _mm512_test_epi32_mask(any, any) ? BLOCK_NOT_FINITE : BLOCK_ZERO;
    }
}

AVX512 static inline __m512i integers(__m512 values, __m512 up) {
    // scalef multiplies by a power of two, rounding once; the embedded rounding is to nearest, ties to even.
    __m512 scaled = _mm512_scalef_ps(values, up);
    return _mm512_cvt_roundps_epi32(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

AVX512 static inline __m512i quanta(__m512 values, __m512 up) {
    return reversed_bytes(integers(values, up));
}

AVX512 static void quantise(const void *values, size_t count, int up, uint8_t *wire) {
    const float *from = values;
    const __m512 power = _mm512_set1_ps((float)up);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm512_storeu_si512(wire + 4 * i, quanta(_mm512_loadu_ps(from + i), power));
    if (i < count) {
        __mmask16 rest = first(count - i);
        _mm512_mask_storeu_epi32(wire + 4 * i, rest, quanta(_mm512_maskz_loadu_ps(rest, from + i), power));
    }
}

AVX512 static inline __m512 values_of(__m512i words, __m512 scale) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(reversed_bytes(words)), scale);
}

AVX512 static inline __m512 values_of_wide(__m512i words, __m512d scale) {
    __m512i sums = reversed_bytes(words);
    __m512d low = _mm512_cvtepi32_pd(_mm512_castsi512_si256(sums));
    __m512d high = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(sums, 1));
    __m256 first_half = _mm512_cvtpd_ps(_mm512_mul_pd(low, scale));
    __m256 second_half = _mm512_cvtpd_ps(_mm512_mul_pd(high, scale));
    __m512d both = _mm512_castpd256_pd512(_mm256_castps_pd(first_half));
    return _mm512_castpd_ps(_mm512_insertf64x4(both, _mm256_castps_pd(second_half), 1));
}

AVX512 static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    if (rounds_once_in_float32(up)) {
        const __m512 scale = _mm512_set1_ps(float_power(-up));
        size_t i = 0;
        for (; i + LANES <= count; i += LANES)
            _mm512_storeu_ps(to + i, values_of(_mm512_loadu_si512(wire + 4 * i), scale));
        if (i < count) {
            __mmask16 rest = first(count - i);
            _mm512_mask_storeu_ps(to + i, rest, values_of(_mm512_maskz_loadu_epi32(rest, wire + 4 * i), scale));
        }
    } else {
        const __m512d scale = _mm512_set1_pd(double_power(-up));
        for (size_t i = 0; i < count; i += LANES) {
            __mmask16 some = first(count - i);
            _mm512_mask_storeu_ps(to + i, some, values_of_wide(_mm512_maskz_loadu_epi32(some, wire + 4 * i), scale));
        }
    }
}

static void settle(void) {
    _mm_sfence();
}

AVX512 static void dequantise_to_memory(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    if (!rounds_once_in_float32(up) || (uintptr_t)to % sizeof *to != 0) {
        dequantise(wire, count, up, to);
        return;
    }
    const __m512 scale = _mm512_set1_ps(float_power(-up));
    const size_t in_line = (uintptr_t)to / sizeof *to % LANES;
    size_t i = 0;
    if (in_line > 0) {
        i = count < LANES - in_line ? count : LANES - in_line;
        _mm512_mask_storeu_ps(to, first(i), values_of(_mm512_maskz_loadu_epi32(first(i), wire), scale));
    }
    for (; i + LANES <= count; i += LANES)
        _mm512_stream_ps(to + i, values_of(_mm512_loadu_si512(wire + 4 * i), scale));
    if (i < count) {
        const __mmask16 rest = first(count - i);
        _mm512_mask_storeu_ps(to + i, rest, values_of(_mm512_maskz_loadu_epi32(rest, wire + 4 * i), scale));
    }
}

AVX512 static void quantise_16(const void *values, size_t count, int up, int limit, uint8_t *wire) {
    const float *from = values;
    const __m512 power = _mm512_set1_ps((float)up);
    const __m256i most = _mm256_set1_epi16((short)limit), least = _mm256_set1_epi16((short)-limit);
    const __m256i top = _mm256_set1_epi32((int)BIAS_16);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m256i lanes = _mm512_cvtsepi32_epi16(integers(_mm512_loadu_ps(from + i), power));
        lanes = _mm256_max_epi16(_mm256_min_epi16(lanes, most), least);
        // Words that add up: what is negative borrows from the next lane.
        __m256i words = _mm256_sub_epi32(_mm256_xor_si256(lanes, top), top);
        _mm256_storeu_si256((__m256i *)(wire + 2 * i), _mm256_shuffle_epi8(words, order_of_bytes()));
    }
    kernels_portable.quantise_16(from + i, count - i, up, limit, wire + 2 * i);
}

AVX512 static inline __m512i mixed(__m512i x) {
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), _mm512_set1_epi32((int)NOISE_FIRST));
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)), _mm512_set1_epi32((int)NOISE_SECOND));
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

AVX512 static void quantise_8(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire) {
    const float *from = values;
    const __m512 power = _mm512_set1_ps((float)up);
    const __m128i most = _mm_set1_epi8((char)limit), least = _mm_set1_epi8((char)-limit);
    const __m128i top = _mm_set1_epi32((int)BIAS_8);
    const __m512i step = _mm512_set1_epi32((int)(LANES * NOISE_STEP));
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i each = _mm512_add_epi32(_mm512_mullo_epi32(places, _mm512_set1_epi32((int)NOISE_STEP)),
                                    _mm512_set1_epi32((int)noise));
    size_t i = 0;
    for (; i + LANES <= count; i += LANES, each = _mm512_add_epi32(each, step)) {
        __m512i fine = integers(_mm512_loadu_ps(from + i), power);
        __m512i bits = _mm512_srli_epi32(mixed(each), 32 - NOISE_SHIFT);
        __m128i lanes = _mm512_cvtsepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(fine, bits), NOISE_SHIFT));
        lanes = _mm_max_epi8(_mm_min_epi8(lanes, most), least);
        __m128i words = _mm_sub_epi32(_mm_xor_si128(lanes, top), top);
        _mm_storeu_si128((__m128i *)(wire + i), _mm_shuffle_epi8(words, _mm256_castsi256_si128(order_of_bytes())));
    }
    kernels_portable.quantise_8(from + i, count - i, up, limit, noise + (uint32_t)i * NOISE_STEP, wire + i);
}

AVX512 static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const __m512 scale = _mm512_set1_ps(float_power(-up));
        const __m256i top = _mm256_set1_epi32((int)BIAS_16);
        for (; i + LANES <= count; i += LANES) {
            __m256i words = _mm256_loadu_si256((const __m256i *)(wire + 2 * i));
            __m256i lanes = _mm256_add_epi32(_mm256_shuffle_epi8(words, order_of_bytes()), top);
            __m512i sums = _mm512_cvtepi16_epi32(_mm256_xor_si256(lanes, top));
            _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale));
        }
    }
    kernels_portable.dequantise_16(wire + 2 * i, count - i, up, to + i);
}

AVX512 static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    size_t i = 0;
    if (rounds_once_in_float32(up)) {
        const __m512 scale = _mm512_set1_ps(float_power(-up));
        const __m128i top = _mm_set1_epi32((int)BIAS_8);
        for (; i + LANES <= count; i += LANES) {
            __m128i words = _mm_loadu_si128((const __m128i *)(wire + i));
            __m128i lanes = _mm_add_epi32(_mm_shuffle_epi8(words, _mm256_castsi256_si128(order_of_bytes())), top);
            __m512i sums = _mm512_cvtepi8_epi32(_mm_xor_si128(lanes, top));
            _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale));
        }
    }
    kernels_portable.dequantise_8(wire + i, count - i, up, to + i);
}

AVX512 static void swap(const void *from, size_t count, void *to) {
    const uint8_t *source = from;
    uint8_t *target = to;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm512_storeu_si512(target + 4 * i, reversed_bytes(_mm512_loadu_si512(source + 4 * i)));
    if (i < count) {
        __mmask16 rest = first(count - i);
        __m512i words = _mm512_maskz_loadu_epi32(rest, source + 4 * i);
        _mm512_mask_storeu_epi32(target + 4 * i, rest, reversed_bytes(words));
    }
}

AVX512 static inline __m512i added(__m512i sums, __m512i words) {
    return reversed_bytes(_mm512_add_epi32(reversed_bytes(sums), reversed_bytes(words)));
}

AVX512 static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        _mm512_storeu_si512(sums + 4 * i, added(_mm512_loadu_si512(sums + 4 * i), _mm512_loadu_si512(wire + 4 * i)));
    if (i < count) {
        __mmask16 rest = first(count - i);
        __m512i words = _mm512_maskz_loadu_epi32(rest, wire + 4 * i);
        __m512i sum = _mm512_maskz_loadu_epi32(rest, sums + 4 * i);
        _mm512_mask_storeu_epi32(sums + 4 * i, rest, added(sum, words));
    }
}

// Of so many vectors' values, from number `i` on.
AVX512 static inline __attribute__((always_inline)) void sum_vectors(const float *const *from, size_t ranks, size_t i,
                                                                     int vectors, __m512 up, __m512 back,
                                                                     float *const *to, size_t places) {
    __m512i words[4];
    for (int v = 0; v < vectors; v++)
        words[v] = _mm512_setzero_si512();
    for (size_t rank = 0; rank < ranks; rank++)
        for (int v = 0; v < vectors; v++)
            words[v] = _mm512_add_epi32(words[v], integers(_mm512_loadu_ps(from[rank] + i + v * LANES), up));
    for (size_t place = 0; place < places; place++)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(to[place] + i + v * LANES, _mm512_mul_ps(_mm512_cvtepi32_ps(words[v]), back));
}

AVX512 static void sum(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                       size_t places) {
    const __m512 power = _mm512_set1_ps((float)up), back = _mm512_set1_ps(float_power(-up));
    size_t i = begin;
    for (; i + 4 * LANES <= end; i += 4 * LANES)
        sum_vectors(from, ranks, i, 4, power, back, to, places);
    for (; i + LANES <= end; i += LANES)
        sum_vectors(from, ranks, i, 1, power, back, to, places);
    kernels_portable.sum(from, ranks, i, end, up, to, places);
}

const struct kernels kernels_avx512 = {
    .name = "avx512",
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
    .halves = &halves_avx2, // as fast as with wider vectors
};
#else
typedef int no_avx512; // an empty file is not C
#endif
