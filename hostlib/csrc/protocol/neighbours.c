// SPDX-License-Identifier: Apache-2.0
#include "protocol/neighbours.h"

#include <string.h>

enum { WORD_BYTES = 4, MOST_WORDS = 1024 };

bool neighbours_have_scanned(const struct neighbours *neighbours, uint64_t blocks) {
    for (unsigned i = 0; i < neighbours->count; i++)
        if (atomic_load_explicit(neighbours->each[i].scanned, memory_order_acquire) < blocks)
            return false;
    return true;
}

void neighbours_agree(struct neighbours *neighbours, uint64_t block, size_t blocks, uint8_t *exponents) {
    memcpy(neighbours->exponents + block, exponents, blocks);
    for (unsigned i = 0; i < neighbours->count; i++) {
        const uint8_t *theirs = neighbours->each[i].exponents + block;
        for (size_t j = 0; j < blocks; j++)
            exponents[j] = exponents[j] > theirs[j] ? exponents[j] : theirs[j];
    }
}

void neighbours_add(const struct neighbours *neighbours, uint64_t block, size_t count, unsigned exponent,
                    uint8_t *wire) {
    _Alignas(64) uint8_t more[MOST_WORDS * WORD_BYTES];
    const uint64_t first = block * neighbours->block_size;
    for (unsigned i = 0; i < neighbours->count; i++) {
        const struct neighbour *neighbour = &neighbours->each[i];
        const struct numbers *numbers = &neighbour->numbers;
        if (neighbour->exponents[block] == BLOCK_ZERO)
            continue;
        numbers_quantise(numbers, neighbour->values + first * numbers->value_bytes, count, exponent,
                         neighbours->first + first, more);
        numbers->kernels->add(more, numbers_words(numbers, count), wire);
    }
}

void neighbours_take(struct neighbours *neighbours, uint64_t block, unsigned exponent, const uint8_t *wire,
                     size_t words) {
    neighbours->agreed[block] = (uint8_t)exponent;
    memcpy(neighbours->sums + block * neighbours->stride, wire, words * WORD_BYTES);
}
