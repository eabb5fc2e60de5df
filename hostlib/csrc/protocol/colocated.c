// SPDX-License-Identifier: Apache-2.0
#include "protocol/colocated.h"

#include <string.h>

enum { WORD_BYTES = 4, MOST_WORDS = 1024 };

bool colocated_have_scanned(const struct colocated *colocated, uint64_t blocks) {
    for (unsigned i = 0; i < colocated->count; i++)
        if (atomic_load_explicit(colocated->each[i].scanned, memory_order_acquire) < blocks)
            return false;
    return true;
}

void colocated_agree(struct colocated *colocated, uint64_t block, size_t blocks, uint8_t *exponents) {
    memcpy(colocated->exponents + block, exponents, blocks);
    for (unsigned i = 0; i < colocated->count; i++) {
        const uint8_t *theirs = colocated->each[i].exponents + block;
        for (size_t j = 0; j < blocks; j++)
            exponents[j] = exponents[j] > theirs[j] ? exponents[j] : theirs[j];
    }
}

void colocated_add(const struct colocated *colocated, uint64_t block, size_t count, unsigned exponent, uint8_t *wire) {
    _Alignas(64) uint8_t more[MOST_WORDS * WORD_BYTES];
    const uint64_t first = block * colocated->block_size;
    for (unsigned i = 0; i < colocated->count; i++) {
        const struct colocated_rank *other = &colocated->each[i];
        const struct numbers *numbers = &other->numbers;
        if (other->exponents[block] == BLOCK_ZERO)
            continue;
        numbers_quantise(numbers, other->values + first * numbers->value_bytes, count, exponent,
                         colocated->first + first, more);
        numbers->kernels->add(more, numbers_words(numbers, count), wire);
    }
}

void colocated_store(struct colocated *colocated, uint64_t block, unsigned exponent, const uint8_t *wire,
                     size_t words) {
    colocated->agreed[block] = (uint8_t)exponent;
    memcpy(colocated->sums + block * colocated->stride, wire, words * WORD_BYTES);
}
