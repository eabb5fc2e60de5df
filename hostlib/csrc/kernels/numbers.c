// SPDX-License-Identifier: Apache-2.0
#include "kernels/numbers.h"

#include "base/fingerprint.h"
#include "base/min.h"

#include <math.h>
#include <string.h>

enum { WIDEST = 32, AT_ONCE = 1024 }; // AT_ONCE: 16-bit floats that are converted to float32 at once, in whole words

static unsigned bits_of(uint32_t wire) {
    return wire == P4REDUCE_WIRE_INT8 ? 8 : wire == P4REDUCE_WIRE_INT16 ? 16 : WIDEST;
}

const char *numbers_wire_name(uint32_t wire) {
    return wire == P4REDUCE_WIRE_INT8 ? "int8" : wire == P4REDUCE_WIRE_INT16 ? "int16" : "int32";
}

static int log2_floor(unsigned value) {
    return 31 - __builtin_clz(value);
}

static int magnitude_of(uint32_t wire, unsigned world_size) {
    if (wire == P4REDUCE_WIRE_INT32)
        return 30 - (world_size > 1 ? log2_floor(world_size - 1) + 1 : 0); // ceil(log2 world_size)
    const unsigned largest_sum = (1U << (bits_of(wire) - 1)) - 1;
    return log2_floor(largest_sum / world_size + 1);
}

bool numbers_of(struct numbers *numbers, const struct kernels *kernels, uint32_t type, uint32_t wire,
                unsigned world_size) {
    const bool is_half = type == P4REDUCE_FLOAT16 || type == P4REDUCE_BFLOAT16;
    const bool known = type == P4REDUCE_FLOAT32 || is_half ? wire <= P4REDUCE_WIRE_INT8
                                                           : type == P4REDUCE_INT32 && wire == P4REDUCE_WIRE_INT32;
    if (kernels == NULL || !known || world_size == 0)
        return false;
    const struct half *half = type == P4REDUCE_FLOAT16 ? &kernels->float16 : &kernels->bfloat16;
    *numbers = (struct numbers){
        .kernels = kernels,
        .type = type,
        .wire = wire,
        .per_word = WIDEST / bits_of(wire),
        .value_bytes = is_half ? 2 : 4,
        .half = is_half ? half : NULL,
        .magnitude = magnitude_of(wire, world_size),
    };
    return numbers->magnitude > 0;
}

// Returns the exponent of the power of two by which values are multiplied.
static int scale_bits(const struct numbers *numbers, unsigned exponent) {
    return numbers->magnitude - ((int)exponent - 126);
}

static bool scan_halves(const struct numbers *numbers, const uint16_t *halves, size_t count, size_t block_size,
                        uint8_t *exponents) {
    bool negative_zeros = false;
    for (size_t i = 0; i < count; i += block_size) {
        const uint16_t turned = numbers->kernels->largest_half(halves + i, (size_t)min_of(count - i, block_size));
        const uint16_t magnitude = turned >> 1;
        float value;
        uint32_t bits;
        numbers->half->widen(&magnitude, 1, &value);
        memcpy(&bits, &value, sizeof bits);
        *exponents++ = exponent_of(bits);
        negative_zeros |= turned == 1;
    }
    return negative_zeros;
}

bool numbers_scan(const struct numbers *numbers, const void *values, size_t count, size_t block_size,
                  uint8_t *exponents) {
    if (numbers->half != NULL)
        return scan_halves(numbers, values, count, block_size, exponents);
    const size_t whole = count / block_size, rest = count % block_size;
    const uint8_t *tail = (const uint8_t *)values + 4 * whole * block_size;
    if (numbers->type == P4REDUCE_INT32) {
        numbers->kernels->scan_int32(values, whole, block_size, exponents);
        if (rest)
            numbers->kernels->scan_int32(tail, 1, rest, exponents + whole);
        return false;
    }
    bool negative_zeros = numbers->kernels->scan_float32(values, whole, block_size, exponents);
    if (rest)
        negative_zeros |= numbers->kernels->scan_float32(tail, 1, rest, exponents + whole);
    return negative_zeros;
}

static void quantise_floats(const struct numbers *numbers, const float *values, size_t count, unsigned exponent,
                            uint64_t first, uint8_t *wire) {
    const struct kernels *kernels = numbers->kernels;
    const int up = scale_bits(numbers, exponent), limit = (1 << numbers->magnitude) - 1;
    if (numbers->wire == P4REDUCE_WIRE_INT32)
        kernels->quantise(values, count, up, wire);
    else if (numbers->wire == P4REDUCE_WIRE_INT16)
        kernels->quantise_16(values, count, up, limit, wire);
    else
        kernels->quantise_8(values, count, up + NOISE_SHIFT, limit, noise_start(numbers->seed, first), wire);
}

void numbers_quantise(const struct numbers *numbers, const void *values, size_t count, unsigned exponent,
                      uint64_t first, uint8_t *wire) {
    if (numbers->type == P4REDUCE_INT32) {
        numbers->kernels->swap(values, count, wire);
    } else if (exponent == BLOCK_NOT_FINITE) {
        memset(wire, 0, 4 * numbers_words(numbers, count));
    } else if (numbers->half == NULL) {
        quantise_floats(numbers, values, count, exponent, first, wire);
    } else {
        const uint16_t *halves = values;
        float wide[AT_ONCE];
        for (size_t i = 0; i < count; i += AT_ONCE, wire += 4 * AT_ONCE / numbers->per_word) {
            const size_t some = (size_t)min_of(count - i, AT_ONCE);
            numbers->half->widen(halves + i, some, wide);
            quantise_floats(numbers, wide, some, exponent, first + i, wire);
        }
    }
}

static void values_of(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                      float *values) {
    const int up = scale_bits(numbers, exponent);
    if (numbers->wire == P4REDUCE_WIRE_INT32)
        numbers->kernels->dequantise(wire, count, up, values);
    else if (numbers->wire == P4REDUCE_WIRE_INT16)
        numbers->kernels->dequantise_16(wire, count, up, values);
    else
        numbers->kernels->dequantise_8(wire, count, up, values);
}

void numbers_residual(const struct numbers *numbers, const void *values, const uint8_t *wire, size_t count,
                      unsigned exponent, float *residual) {
    if (exponent == BLOCK_NOT_FINITE) {
        memset(residual, 0, count * sizeof *residual);
        return;
    }
    const float *wanted = values;
    values_of(numbers, wire, count, exponent, residual);
    for (size_t i = 0; i < count; i++) {
        const float left = wanted[i] - residual[i];
        residual[i] = isfinite(left) ? left : 0; // nothing is left of values whose sum is infinite
    }
}

static void dequantise_floats(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                              float *values) {
    if (exponent == BLOCK_NOT_FINITE) {
        const uint32_t nan = NAN_BITS;
        for (size_t i = 0; i < count; i++)
            memcpy(values + i, &nan, sizeof nan);
        return;
    }
    values_of(numbers, wire, count, exponent, values);
    if (numbers->divisor != 0)
        for (size_t i = 0; i < count; i++)
            values[i] /= numbers->divisor;
}

void numbers_dequantise(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                        void *values) {
    if (numbers->type == P4REDUCE_INT32) {
        numbers->kernels->swap(wire, count, values);
    } else if (numbers->half == NULL) {
        dequantise_floats(numbers, wire, count, exponent, values);
    } else {
        uint16_t *halves = values;
        float wide[AT_ONCE];
        for (size_t i = 0; i < count; i += AT_ONCE, wire += 4 * AT_ONCE / numbers->per_word) {
            const size_t some = (size_t)min_of(count - i, AT_ONCE);
            dequantise_floats(numbers, wire, some, exponent, wide);
            numbers->half->narrow(wide, some, halves + i);
        }
    }
}

bool numbers_can_dequantise_to_memory(const struct numbers *numbers) {
    return numbers->kernels->dequantise_to_memory != NULL && numbers->type == P4REDUCE_FLOAT32 &&
           numbers->wire == P4REDUCE_WIRE_INT32 && numbers->divisor == 0;
}

void numbers_dequantise_to_memory(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                                  void *values) {
    if (exponent != BLOCK_NOT_FINITE)
        numbers->kernels->dequantise_to_memory(wire, count, scale_bits(numbers, exponent), values);
    else
        numbers_dequantise(numbers, wire, count, exponent, values);
}

bool numbers_sum(const struct numbers *numbers, const void *const *from, size_t ranks, size_t begin, size_t end,
                 unsigned exponent, void *const *to, size_t target_count) {
    const int up = scale_bits(numbers, exponent);
    if (numbers->type != P4REDUCE_FLOAT32 || numbers->wire != P4REDUCE_WIRE_INT32 || exponent == BLOCK_NOT_FINITE ||
        !in_float32(up))
        return false;
    float *const *sums = (float *const *)to;
    const bool divided = numbers->divisor != 0;
    numbers->kernels->sum((const float *const *)from, ranks, begin, end, up, sums, divided ? 1 : target_count);
    for (size_t i = begin; divided && i < end; i++)
        sums[0][i] /= numbers->divisor;
    for (size_t target = 1; divided && target < target_count; target++)
        memcpy(sums[target] + begin, sums[0] + begin, (end - begin) * sizeof *sums[0]);
    return true;
}

p4reduce_status p4reduce_scan(const char *simd, uint32_t type, const void *values, uint64_t count, uint32_t block_size,
                              uint8_t *exponents) {
    struct numbers numbers;
    if (!numbers_of(&numbers, kernels_named(simd), type, P4REDUCE_WIRE_INT32, 1) || block_size == 0)
        return P4REDUCE_INVALID;
    numbers_scan(&numbers, values, count, block_size, exponents);
    return P4REDUCE_OK;
}

p4reduce_status p4reduce_quantise(const char *simd, uint32_t type, uint32_t wire, const void *values, uint64_t count,
                                  uint32_t world_size, uint32_t exponent, uint32_t seed, uint64_t first,
                                  uint8_t *words) {
    struct numbers numbers;
    if (exponent > 255 || !numbers_of(&numbers, kernels_named(simd), type, wire, world_size))
        return P4REDUCE_INVALID;
    numbers.seed = seed;
    numbers_quantise(&numbers, values, count, exponent, first, words);
    return P4REDUCE_OK;
}

p4reduce_status p4reduce_dequantise(const char *simd, uint32_t type, uint32_t wire, const uint8_t *words,
                                    uint64_t count, uint32_t world_size, uint32_t exponent, void *values) {
    struct numbers numbers;
    if (exponent > 255 || !numbers_of(&numbers, kernels_named(simd), type, wire, world_size))
        return P4REDUCE_INVALID;
    numbers_dequantise(&numbers, words, count, exponent, values);
    return P4REDUCE_OK;
}

static const struct half *half_named(const char *simd, uint32_t type) {
    struct numbers numbers;
    return numbers_of(&numbers, kernels_named(simd), type, P4REDUCE_WIRE_INT32, 1) ? numbers.half : NULL;
}

p4reduce_status p4reduce_widen(const char *simd, uint32_t type, const void *values, uint64_t count, void *wide) {
    const struct half *half = half_named(simd, type);
    if (half != NULL)
        half->widen(values, count, wide);
    return half != NULL ? P4REDUCE_OK : P4REDUCE_INVALID;
}

p4reduce_status p4reduce_narrow(const char *simd, uint32_t type, const void *wide, uint64_t count, void *values) {
    const struct half *half = half_named(simd, type);
    if (half != NULL)
        half->narrow(wide, count, values);
    return half != NULL ? P4REDUCE_OK : P4REDUCE_INVALID;
}

uint32_t p4reduce_fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count) {
    return fingerprint(counter, dtype, reduce_op, count);
}

const char *p4reduce_simd(void) {
    return kernels_chosen()->name;
}

unsigned p4reduce_abi(void) {
    return P4REDUCE_ABI;
}
