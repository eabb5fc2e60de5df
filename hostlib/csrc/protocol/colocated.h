// SPDX-License-Identifier: Apache-2.0
// What other ranks of this host add to a task that carries their values as well as this rank's. It is in memory that
// they share; intranode/host.h says where.
#ifndef P4REDUCE_COLOCATED_H
#define P4REDUCE_COLOCATED_H

#include "kernels/numbers.h"

#include <stdatomic.h>

// One of them. Its blocks that are not zero are where they are in its tensor.
struct colocated_rank {
    struct numbers numbers;
    const uint8_t *values, *exponents;
    const _Atomic uint64_t *scanned; // blocks, from the first
};

struct colocated {
    size_t block_size;   // values
    uint64_t first;      // the task's first value, in the tensor
    uint8_t *exponents;  // of this rank's blocks
    uint8_t *agreed;     // of blocks that were added up
    uint8_t *sums;       // their words
    size_t stride;       // bytes of these, from one block to the next
    unsigned count;
    struct colocated_rank each[];
};

// Whether it is known of all which of their first `blocks` are zero.
bool colocated_have_scanned(const struct colocated *colocated, uint64_t blocks);

// Takes the exponents of this rank's blocks from `block` on, and makes of each the largest.
void colocated_agree(struct colocated *colocated, uint64_t block, size_t blocks, uint8_t *exponents);

// Whether a block is not zero at this rank, of those that were agreed on.
static inline bool colocated_has_own(const struct colocated *colocated, uint64_t block) {
    return colocated->exponents[block] != BLOCK_ZERO;
}

// Adds what they have of a block of `count` values to the words of it.
void colocated_add(const struct colocated *colocated, uint64_t block, size_t count, unsigned exponent,
                   uint8_t *wire);

// Gives them the sums of a block.
void colocated_store(struct colocated *colocated, uint64_t block, unsigned exponent, const uint8_t *wire,
                     size_t words);

#endif
