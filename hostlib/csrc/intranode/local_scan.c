// SPDX-License-Identifier: Apache-2.0
// The scan of a rank's own values: which blocks are not zero, and where other ranks find them.
#include "intranode/local.h"

#include <string.h>

enum { PROBED_BLOCKS = 8 };

// Returns whether a few blocks, spread over the piece, are all non-zero.
static bool seems_dense(const struct local *local, const struct piece *piece) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    for (unsigned i = 0; i < PROBED_BLOCKS; i++) {
        const unsigned block = (unsigned)((uint64_t)i * piece->blocks / PROBED_BLOCKS);
        uint8_t exponent;
        numbers_scan(&task->numbers, piece_own_values(local, piece) + block * block_bytes,
                     piece_values_in(local, piece, block), task->block_size, &exponent);
        if (exponent == BLOCK_ZERO)
            return false;
    }
    return true;
}

// Copies the non-zero blocks behind the copies of the pieces before.
static void copy_blocks(struct local *local, const struct piece *piece, const uint8_t *exponents) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    const uint8_t *from = piece_own_values(local, piece);
    uint8_t *copies = buffers_copies(&local->windows, piece->window, local->rank);
    local_window(local, piece->window)->ranks[local->rank].copy_offsets[piece->index] = (uint32_t)local->copied;
    for (unsigned block = 0; (block = next_nonzero(exponents, block, piece->blocks)) < piece->blocks; block++) {
        memcpy(copies + local->copied, from + block * block_bytes,
               piece_values_in(local, piece, block) * task->numbers.value_bytes);
        local->copied += block_bytes;
    }
}

void local_scan(struct local *local, const struct piece *piece) {
    const struct task *task = local->task;
    uint8_t *content = piece_content(local, piece, local->rank);
    uint8_t *exponents = piece_exponents(local, piece, local->rank);
    if (piece->index == 0)
        local->copied = 0;
    if (piece->postponed != NULL && piece->postponed->given) {
        *content = EMPTY;
        if (piece->postponed->owner == local->rank)
            memcpy(piece_sums(local, piece), piece_own_values(local, piece), piece->values * task->numbers.value_bytes);
        return;
    }
    const bool readable = piece_is_readable(local, piece) && !local->one_shot;
    if (readable && task->request.zeros == P4REDUCE_ZEROS_SKIPPED && seems_dense(local, piece)) {
        *content = UNSCANNED;
        return;
    }
    task_scan(task, piece->first_block, piece->blocks, exponents);
    const unsigned nonzero = count_nonzero(exponents, piece->blocks);
    const size_t bytes = nonzero * task->block_size * task->numbers.value_bytes;
    const bool much = 2 * nonzero > piece->blocks || local->copied + bytes > local->windows.copies_bytes;
    *content = nonzero == 0 ? EMPTY : readable && much ? IN_TENSOR : COPIED;
    if (*content == COPIED)
        copy_blocks(local, piece, exponents);
}
