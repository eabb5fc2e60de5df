// SPDX-License-Identifier: Apache-2.0
// What of a rank's own values is not zero, and where the other ranks find it.
#include "intranode/local_pieces.h"

#include <string.h>

enum { PROBED_BLOCKS = 8 };

// Whether some blocks, spread over the piece, are all not zero.
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

// Blocks of zeros that count all the same have the least exponent of those that are not zero: as in task.c.
static void announce_zeros(const struct task *task, const struct piece *piece, uint8_t *exponents) {
    const uint32_t zeros = task->request.zeros;
    const uint8_t least = task->request.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] == BLOCK_ZERO &&
            (zeros == P4REDUCE_ZEROS_SENT ||
             (zeros == P4REDUCE_ZEROS_FIRST && piece->first_block + block < task->streams)))
            exponents[block] = least;
}

// Writes +0 to blocks of zeros, so that none keeps a -0.
static void clear_zeros(const struct local *local, const struct piece *piece, const uint8_t *exponents) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    for (unsigned block = 0; block < piece->blocks; block++)
        if (exponents[block] == BLOCK_ZERO)
            memset(piece_own_values(local, piece) + block * block_bytes, 0,
                   piece_values_in(local, piece, block) * task->numbers.value_bytes);
}

// Copies what is not zero behind the copies of the pieces before.
static void copy_blocks(struct local *local, const struct piece *piece, const uint8_t *exponents) {
    const struct task *task = local->task;
    const size_t block_bytes = task->block_size * task->numbers.value_bytes;
    const uint8_t *from = piece_own_values(local, piece);
    uint8_t *copies = segment_copies(&local->segment, piece->window, local->segment.rank);
    segment_places(&local->segment, piece->window, local->segment.rank)[piece->index] = (uint32_t)local->copied;
    for (unsigned block = 0; (block = next_nonzero(exponents, block, piece->blocks)) < piece->blocks; block++) {
        memcpy(copies + local->copied, from + block * block_bytes,
               piece_values_in(local, piece, block) * task->numbers.value_bytes);
        local->copied += block_bytes;
    }
}

void local_scan(struct local *local, const struct piece *piece) {
    const struct task *task = local->task;
    uint8_t *content = piece_content(local, piece, local->segment.rank);
    uint8_t *exponents = piece_exponents(local, piece, local->segment.rank);
    if (piece->index == 0)
        local->copied = 0;
    if (piece->postponed != NULL && piece->postponed->given) {
        *content = EMPTY;
        if (piece->postponed->owner == local->segment.rank)
            memcpy(segment_sums(&local->segment, piece->window, piece->index), piece_own_values(local, piece),
                   piece->values * task->numbers.value_bytes);
        return;
    }
    const bool readable = piece_may_stay(local, piece) && !local->by_all;
    if (readable && task->request.zeros == P4REDUCE_ZEROS_SKIPPED && seems_dense(local, piece)) {
        *content = UNSCANNED;
        return;
    }
    const bool negative_zeros =
        numbers_scan(&task->numbers, piece_own_values(local, piece), piece->values, task->block_size, exponents);
    if (task->request.zeros != P4REDUCE_ZEROS_SKIPPED)
        announce_zeros(task, piece, exponents);
    if (negative_zeros && !task->request.read_only)
        clear_zeros(local, piece, exponents);
    const unsigned nonzero = count_nonzero(exponents, piece->blocks);
    const size_t bytes = nonzero * task->block_size * task->numbers.value_bytes;
    const bool much = 2 * nonzero > piece->blocks || local->copied + bytes > local->segment.copies_bytes;
    *content = nonzero == 0 ? EMPTY : readable && much ? IN_PLACE : COPIED;
    if (*content == COPIED)
        copy_blocks(local, piece, exponents);
}
