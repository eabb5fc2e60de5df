// SPDX-License-Identifier: Apache-2.0
#include "protocol/gather.h"

#include "base/min.h"
#include "wire/bytes.h"

#include <fenv.h>
#include <stdlib.h>

enum { LARGEST_BLOCK = 1024 }; // words

bool gather_fits(const p4reduce_membership *membership, uint32_t type, uint64_t count) {
    const uint64_t room = (uint64_t)membership->lanes * membership->block_size;
    return type != P4REDUCE_INT32 && !membership->sharing && count > 0 && count <= room / membership->world_size;
}

// Widens 16-bit floats in the default floating-point mode: a caller's thread may flush subnormals to zero.
static void widen(const struct half *half, const void *halves, size_t count, float *values) {
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    half->widen(halves, count, values);
    fesetenv(&callers);
}

struct gather *gather_new(const p4reduce_membership *membership, const struct numbers *numbers, size_t block_size,
                          const p4reduce_request *request) {
    const size_t part = request->count, all = part * membership->world_size;
    struct gather *gather = calloc(1, sizeof *gather + (all + part) * sizeof *gather->values);
    if (gather == NULL)
        return NULL;
    gather->numbers = gather->as_single = *numbers;
    gather->as_single.type = P4REDUCE_FLOAT32;
    gather->as_single.value_bytes = sizeof *gather->values;
    gather->as_single.half = NULL;
    gather->block_size = block_size;
    gather->request = request;
    gather->ranks = membership->world_size;
    gather->rank = membership->rank;
    float *own = gather->values + all;
    if (numbers->half != NULL)
        widen(numbers->half, request->data, part, own);
    else
        memcpy(own, request->data, part * sizeof *own);
    gather->own = own;
    memcpy(gather->values + part * gather->rank, own, part * sizeof *own);
    return gather;
}

// Returns a rank's values from number `first` on.
static const float *values_of(const struct gather *gather, unsigned rank, size_t first) {
    return gather->values + gather->request->count * rank + first;
}

// Returns the largest biased exponent of a block at one rank.
static uint8_t exponent_at(const struct gather *gather, unsigned rank, size_t first, size_t count) {
    uint8_t exponent;
    numbers_scan(&gather->as_single, values_of(gather, rank, first), count, count, &exponent);
    return exponent;
}

static void quantise(const struct gather *gather, uint32_t fingerprint, unsigned rank, size_t first, size_t count,
                     uint8_t exponent, uint8_t *wire) {
    struct numbers numbers = gather->as_single;
    numbers.seed = fingerprint | rank;
    numbers_quantise(&numbers, values_of(gather, rank, first), count, exponent, first, wire);
}

// Adds up a block in the same way as switches.
static void add(const struct gather *gather, uint32_t fingerprint, size_t first, size_t count) {
    const p4reduce_request *request = gather->request;
    uint8_t *values = (uint8_t *)request->data + first * gather->numbers.value_bytes, exponent = BLOCK_ZERO;
    for (unsigned rank = 0; rank < gather->ranks; rank++) {
        const uint8_t own = exponent_at(gather, rank, first, count);
        exponent = own > exponent ? own : exponent;
    }
    _Alignas(64) uint8_t wire[4 * LARGEST_BLOCK], sums[4 * LARGEST_BLOCK] = {0};
    for (unsigned rank = 0; rank < gather->ranks && exponent != BLOCK_ZERO; rank++) {
        quantise(gather, fingerprint, rank, first, count, exponent, wire);
        for (size_t i = 0; i < numbers_words(&gather->numbers, count); i++)
            store_32(sums + 4 * i, load_32(sums + 4 * i) + load_32(wire + 4 * i));
        if (rank == gather->rank && request->residual != NULL && exponent_at(gather, rank, first, count) != BLOCK_ZERO)
            numbers_residual(&gather->as_single, values_of(gather, rank, first), wire, count, exponent,
                             request->residual + first);
    }
    if (request->read_only)
        return;
    if (exponent == BLOCK_ZERO)
        memset(values, 0, count * gather->numbers.value_bytes);
    else
        numbers_dequantise(&gather->numbers, sums, count, exponent, values);
}

bool gather_finish(struct gather *gather, uint32_t fingerprint) {
    const size_t all = gather->request->count;
    if (memcmp(values_of(gather, gather->rank, 0), gather->own, all * sizeof *gather->own) != 0)
        return false;
    for (size_t first = 0; first < all; first += gather->block_size)
        add(gather, fingerprint, first, min_of(all - first, gather->block_size));
    return true;
}
