// SPDX-License-Identifier: Apache-2.0
// The values of other ranks of this host, for a task that carries them together with this rank's. They are in memory
// that the ranks share (intranode/host.h).
#ifndef P4REDUCE_COLOCATED_H
#define P4REDUCE_COLOCATED_H

#include "kernels/numbers.h"

#include <stdatomic.h>

// One co-located rank. `values` has its non-zero blocks at the same offsets as its tensor.
struct colocated_rank {
    struct numbers numbers;
    const uint8_t *values, *exponents;
    // Blocks that are scanned and copied, from the first. The rank stores it with release order after it has written
    // their exponents and values; this rank loads it with acquire order before it reads them.
    const _Atomic uint64_t *scanned;
};

// The co-located ranks of a task. The task owns it; the arrays are in shared memory.
struct colocated {
    size_t block_size;  // values
    uint64_t first;     // the task's first value, in the tensor
    uint8_t *exponents; // of this rank's blocks
    uint8_t *agreed;    // largest exponents of the blocks whose sums are there
    uint8_t *sums;      // words of these blocks
    size_t stride;      // bytes from one block's sums to the next
    unsigned count;
    struct colocated_rank each[];
};

// Returns whether all of them have scanned their first `blocks` blocks.
bool colocated_have_scanned(const struct colocated *colocated, uint64_t blocks);

// Keeps the exponents of this rank's blocks from `block` on, and replaces each by the largest of all ranks.
void colocated_agree(struct colocated *colocated, uint64_t block, size_t blocks, uint8_t *exponents);

// Returns whether a block is not zero at this rank. It must have been agreed on.
static inline bool colocated_has_own(const struct colocated *colocated, uint64_t block) {
    return colocated->exponents[block] != BLOCK_ZERO;
}

// Adds the co-located ranks' values of a block, which has `count` values, to its words.
void colocated_add(const struct colocated *colocated, uint64_t block, size_t count, unsigned exponent, uint8_t *wire);

// Stores the sums of a block for the co-located ranks.
void colocated_store(struct colocated *colocated, uint64_t block, unsigned exponent, const uint8_t *wire, size_t words);

#endif
