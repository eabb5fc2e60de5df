// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include "fingerprint.h"
#include "structures.h"

#include <string.h>

int numbers_headroom(unsigned world_size) {
    return world_size > 1 ? 32 - __builtin_clz(world_size - 1) : 0; // ceil(log2 world_size)
}

// Of the power of two that values are multiplied with.
static int scale_bits(const struct numbers *numbers, unsigned exponent) {
    return 30 - numbers->headroom - ((int)exponent - 126);
}

bool numbers_scan(const struct numbers *numbers, const void *values, size_t count, size_t block_size,
                  uint8_t *exponents) {
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

void numbers_quantise(const struct numbers *numbers, const void *values, size_t count, unsigned exponent,
                      uint8_t *wire) {
    if (numbers->type == P4REDUCE_INT32)
        numbers->kernels->swap(values, count, wire);
    else if (exponent == BLOCK_NOT_FINITE)
        memset(wire, 0, 4 * count);
    else
        numbers->kernels->quantise(values, count, scale_bits(numbers, exponent), wire);
}

void numbers_dequantise(const struct numbers *numbers, const uint8_t *wire, size_t count, unsigned exponent,
                        void *values) {
    if (numbers->type == P4REDUCE_INT32) {
        numbers->kernels->swap(wire, count, values);
        return;
    }
    if (exponent == BLOCK_NOT_FINITE) {
        uint32_t *words = values;
        for (size_t i = 0; i < count; i++)
            words[i] = NAN_BITS;
        return;
    }
    numbers->kernels->dequantise(wire, count, scale_bits(numbers, exponent), values);
    if (numbers->divisor != 0) {
        float *quotients = values;
        for (size_t i = 0; i < count; i++)
            quotients[i] /= numbers->divisor;
    }
}

static bool numbers_for(struct numbers *numbers, const char *simd, uint32_t type, unsigned world_size) {
    *numbers = (struct numbers){.kernels = kernels_named(simd), .type = type, .headroom = numbers_headroom(world_size)};
    return numbers->kernels != NULL && (type == P4REDUCE_FLOAT32 || type == P4REDUCE_INT32);
}

p4reduce_status p4reduce_scan(const char *simd, uint32_t type, const void *values, uint64_t count, uint32_t block_size,
                              uint8_t *exponents) {
    struct numbers numbers;
    if (!numbers_for(&numbers, simd, type, 1) || block_size == 0)
        return P4REDUCE_INVALID;
    numbers_scan(&numbers, values, count, block_size, exponents);
    return P4REDUCE_OK;
}

p4reduce_status p4reduce_quantise(const char *simd, uint32_t type, const void *values, uint64_t count,
                                  uint32_t world_size, uint32_t exponent, uint8_t *wire) {
    struct numbers numbers;
    if (world_size == 0 || exponent > 255 || !numbers_for(&numbers, simd, type, world_size))
        return P4REDUCE_INVALID;
    numbers_quantise(&numbers, values, count, exponent, wire);
    return P4REDUCE_OK;
}

p4reduce_status p4reduce_dequantise(const char *simd, uint32_t type, const uint8_t *wire, uint64_t count,
                                    uint32_t world_size, uint32_t exponent, void *values) {
    struct numbers numbers;
    if (world_size == 0 || exponent > 255 || !numbers_for(&numbers, simd, type, world_size))
        return P4REDUCE_INVALID;
    numbers_dequantise(&numbers, wire, count, exponent, values);
    return P4REDUCE_OK;
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
