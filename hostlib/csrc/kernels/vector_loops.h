// SPDX-License-Identifier: Apache-2.0
// The loops over vectors, for the instruction set of the file that includes this one. vectors.h says what that file
// must define. A loop takes whole vectors. REST takes the values that remain, and scales that float32 cannot represent.
#include "kernels/vectors.h"

enum { LINE_VALUES = 16, SUM_VECTORS = 4 }; // values in a cache line; vectors that sum() keeps in registers

// Returns the largest word of a block in each lane, rotated left by one bit. A block has whole vectors.
SIMD static inline __attribute__((always_inline)) words largest_of(const uint32_t *block, size_t block_size) {
    words largest = {0};
    for (size_t i = 0; i < block_size; i += LANES) {
        const words next = load_words(block + i);
        // After the rotation, the order of words is that of magnitudes, and the sign is the last bit: 1 is a -0.
        largest = larger_words(largest, next << 1 | next >> 31);
    }
    return largest;
}

SIMD static inline __attribute__((always_inline)) bool scan_blocks(const uint32_t *from, size_t blocks,
                                                                   size_t block_size, uint8_t *exponents) {
    words negative_zeros = {0};
    size_t block = 0;
    for (; block + LANES <= blocks; block += LANES, from += LANES * block_size) {
        // Hardware prefetchers stop at the end of a page.
        for (size_t i = 0; i < LANES * block_size; i += LINE_VALUES)
            __builtin_prefetch((const char *)(from + i) + SCAN_AHEAD, 0, 2);
        words each[LANES];
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; lane++)
            each[lane] = largest_of(from + lane * block_size, block_size);
        const words largest = largest_of_each(each);
        store_lowest_bytes(exponents + block, larger_words(largest >> 24, (words)(largest > 1) & 1));
        negative_zeros |= (words)(largest == 1);
    }
    bool negative_zero = any_bit(negative_zeros);
    for (; block < blocks; block++, from += block_size) {
        const uint32_t largest = largest_word(largest_of(from, block_size));
        exponents[block] = exponent_of(largest >> 1);
        negative_zero |= largest == 1;
    }
    return negative_zero;
}

SIMD static bool scan_float32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    if (block_size % LANES != 0)
        return REST.scan_float32(values, blocks, block_size, exponents);
    // With the usual size as a constant, the compiler makes a faster loop.
    return block_size == 64 ? scan_blocks(values, blocks, 64, exponents)
                            : scan_blocks(values, blocks, block_size, exponents);
}

SIMD static void scan_int32(const void *values, size_t blocks, size_t block_size, uint8_t *exponents) {
    const uint32_t *from = values;
    if (block_size % LANES != 0) {
        REST.scan_int32(values, blocks, block_size, exponents);
        return;
    }
    for (size_t block = 0; block < blocks; block++, from += block_size) {
        words any = {0};
        for (size_t i = 0; i < block_size; i += LANES)
            any |= load_words(from + i);
        exponents[block] = any_bit(any) ? BLOCK_NOT_FINITE : BLOCK_ZERO;
    }
}

// Packs adjacent integers into one word, so that words can be added: a negative integer borrows from the next one.
SIMD static inline words joined(words lanes, uint32_t bias) {
    return reversed_bytes((lanes ^ bias) - bias);
}

SIMD static inline words separated(const uint8_t *wire, uint32_t bias) {
    return (reversed_bytes(load_words(wire)) + bias) ^ bias;
}

// A subnormal product is not exact, but its rounded value is 0 anyway.
SIMD static inline integers quanta(const float *from, float scale) {
    return rounded(load_floats(from) * scale);
}

SIMD static inline floats values_of(integers sums, float scale) {
    return __builtin_convertvector(sums, floats) * scale;
}

SIMD static void quantise(const void *values, size_t count, int up, uint8_t *wire) {
    const float *from = values;
    const float scale = float_power(up);
    size_t i = 0;
    for (; in_float32(up) && i + LANES <= count; i += LANES)
        store_words(wire + 4 * i, reversed_bytes((words)quanta(from + i, scale)));
    if (i < count)
        REST.quantise(from + i, count - i, up, wire + 4 * i);
}

SIMD static void dequantise(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const float scale = float_power(-up);
    size_t i = 0;
    for (; in_float32(up) && i + LANES <= count; i += LANES)
        store_floats(to + i, values_of((integers)reversed_bytes(load_words(wire + 4 * i)), scale));
    if (i < count)
        REST.dequantise(wire + 4 * i, count - i, up, to + i);
}

#ifdef STREAM
static void settle(void) {
    _mm_sfence();
}

SIMD static void dequantise_to_memory(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const float scale = float_power(-up);
    const size_t in_line = (uintptr_t)to / sizeof *to % LINE_VALUES, first = in_line > 0 ? LINE_VALUES - in_line : 0;
    if (!in_float32(up) || (uintptr_t)to % sizeof *to != 0 || first >= count) {
        dequantise(wire, count, up, to);
        return;
    }
    dequantise(wire, first, up, to);
    size_t i = first;
    for (; i + LINE_VALUES <= count; i += LINE_VALUES)
        for (size_t part = i; part < i + LINE_VALUES; part += LANES)
            STREAM(to + part, values_of((integers)reversed_bytes(load_words(wire + 4 * part)), scale));
    dequantise(wire + 4 * i, count - i, up, to + i);
}
#endif

SIMD static void quantise_16(const void *values, size_t count, int up, int limit, uint8_t *wire) {
    const float *from = values;
    const float scale = float_power(up);
    size_t i = 0;
    for (; in_float32(up) && i + 2 * LANES <= count; i += 2 * LANES) {
        const shorts lanes = packed_shorts(quanta(from + i, scale), quanta(from + i + LANES, scale));
        store_words(wire + 2 * i, joined((words)clamped_shorts(lanes, limit), BIAS_16));
    }
    if (i < count)
        REST.quantise_16(from + i, count - i, up, limit, wire + 2 * i);
}

// Returns noise_bits() of each lane.
SIMD static inline integers noise_of(words x) {
    x = (x ^ x >> 16) * NOISE_FIRST;
    x = (x ^ x >> 15) * NOISE_SECOND;
    return (integers)((x ^ x >> 16) >> (32 - NOISE_SHIFT));
}

SIMD static void quantise_8(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire) {
    static const uint32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float *from = values;
    const float scale = float_power(up);
    words each = load_words(numbers) * NOISE_STEP + noise;
    size_t i = 0;
    for (; in_float32(up) && i + 4 * LANES <= count; i += 4 * LANES) {
        integers parts[4];
        for (int part = 0; part < 4; part++, each += LANES * NOISE_STEP)
            parts[part] = (quanta(from + i + part * LANES, scale) + noise_of(each)) >> NOISE_SHIFT;
        store_words(wire + i, joined((words)clamped_bytes(packed_bytes(parts), limit), BIAS_8));
    }
    if (i < count)
        REST.quantise_8(from + i, count - i, up, limit, noise + (uint32_t)i * NOISE_STEP, wire + i);
}

SIMD static void dequantise_16(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const float scale = float_power(-up);
    size_t i = 0;
    for (; in_float32(up) && i + 2 * LANES <= count; i += 2 * LANES) {
        integers parts[2];
        widen_shorts((shorts)separated(wire + 2 * i, BIAS_16), parts);
        for (int part = 0; part < 2; part++)
            store_floats(to + i + part * LANES, values_of(parts[part], scale));
    }
    if (i < count)
        REST.dequantise_16(wire + 2 * i, count - i, up, to + i);
}

SIMD static void dequantise_8(const uint8_t *wire, size_t count, int up, void *values) {
    float *to = values;
    const float scale = float_power(-up);
    size_t i = 0;
    for (; in_float32(up) && i + 4 * LANES <= count; i += 4 * LANES) {
        integers parts[4];
        widen_bytes((bytes)separated(wire + i, BIAS_8), parts);
        for (int part = 0; part < 4; part++)
            store_floats(to + i + part * LANES, values_of(parts[part], scale));
    }
    if (i < count)
        REST.dequantise_8(wire + i, count - i, up, to + i);
}

SIMD static void swap(const void *from, size_t count, void *to) {
    const uint8_t *source = from;
    uint8_t *target = to;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_words(target + 4 * i, reversed_bytes(load_words(source + 4 * i)));
    if (i < count)
        REST.swap(source + 4 * i, count - i, target + 4 * i);
}

SIMD static void add(const uint8_t *wire, size_t count, uint8_t *sums) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const words sum = reversed_bytes(load_words(sums + 4 * i)) + reversed_bytes(load_words(wire + 4 * i));
        store_words(sums + 4 * i, reversed_bytes(sum));
    }
    if (i < count)
        REST.add(wire + 4 * i, count - i, sums + 4 * i);
}

// Computes the sums of several vectors of values, from number `i` on.
SIMD static inline __attribute__((always_inline)) void sum_vectors(const float *const *from, size_t ranks, size_t i,
                                                                   int vectors, int up, float *const *to,
                                                                   size_t target_count) {
    words sums[SUM_VECTORS];
    for (int v = 0; v < vectors; v++)
        sums[v] = (words){0};
    for (size_t rank = 0; rank < ranks; rank++)
        for (int v = 0; v < vectors; v++)
            sums[v] += (words)quanta(from[rank] + i + v * LANES, float_power(up));
    for (size_t target = 0; target < target_count; target++)
        for (int v = 0; v < vectors; v++)
            store_floats(to[target] + i + v * LANES, values_of((integers)sums[v], float_power(-up)));
}

SIMD static void sum(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                     size_t target_count) {
    size_t i = begin;
    for (; i + SUM_VECTORS * LANES <= end; i += SUM_VECTORS * LANES)
        sum_vectors(from, ranks, i, SUM_VECTORS, up, to, target_count);
    for (; i + LANES <= end; i += LANES)
        sum_vectors(from, ranks, i, 1, up, to, target_count);
    if (i < end)
        REST.sum(from, ranks, i, end, up, to, target_count);
}

SIMD static void widen_float16(const uint16_t *from, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_floats(values + i, load_float16(from + i));
    if (i < count)
        REST.float16.widen(from + i, count - i, values + i);
}

SIMD static void narrow_float16(const float *values, size_t count, uint16_t *to) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_float16(to + i, load_floats(values + i));
    if (i < count)
        REST.float16.narrow(values + i, count - i, to + i);
}

SIMD static void widen_bfloat16(const uint16_t *from, size_t count, float *values) {
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_floats(values + i, (floats)(load_wide(from + i) << 16));
    if (i < count)
        REST.bfloat16.widen(from + i, count - i, values + i);
}

// Returns the result in the lower half of each word.
SIMD static inline words rounded_bfloat16(const float *values) {
    const floats numbers = load_floats(values);
    const words bits = (words)numbers, upper = bits >> 16, nan = (words)(numbers != numbers);
    return (((bits + 0x7FFF + (upper & 1)) >> 16) & ~nan) | ((upper | 0x40) & nan);
}

SIMD static void narrow_bfloat16(const float *values, size_t count, uint16_t *to) {
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES)
        store_words(to + i, (words)packed_halves(rounded_bfloat16(values + i), rounded_bfloat16(values + i + LANES)));
    if (i < count)
        REST.bfloat16.narrow(values + i, count - i, to + i);
}

SIMD static uint16_t largest_half(const uint16_t *from, size_t count) {
    halves lanes = {0};
    size_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        const halves next = (halves)load_words(from + i);
        lanes = larger_halves(lanes, next << 1 | next >> 15);
    }
    const uint16_t largest = largest_lane(lanes), rest = i < count ? REST.largest_half(from + i, count - i) : 0;
    return largest > rest ? largest : rest;
}

const struct kernels KERNELS = {
    .name = NAME,
    .scan_float32 = scan_float32,
    .scan_int32 = scan_int32,
    .quantise = quantise,
    .dequantise = dequantise,
#ifdef STREAM
    .dequantise_to_memory = dequantise_to_memory,
    .settle = settle,
#endif
    .quantise_16 = quantise_16,
    .quantise_8 = quantise_8,
    .dequantise_16 = dequantise_16,
    .dequantise_8 = dequantise_8,
    .swap = swap,
    .add = add,
    .sum = sum,
    .float16 = {.widen = widen_float16, .narrow = narrow_float16},
    .bfloat16 = {.widen = widen_bfloat16, .narrow = narrow_bfloat16},
    .largest_half = largest_half,
};
