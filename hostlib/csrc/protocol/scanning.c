// SPDX-License-Identifier: Apache-2.0
#include "protocol/task.h"

#include "base/min.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 8 };

bool scanning_open(struct task *task) {
    struct scanning *scanning = &task->scanning;
    const uint32_t rows = task->rows;
    scanning->piece = task->streams < SCAN_BLOCKS ? SCAN_BLOCKS / task->streams : 1;
    // With many rows, the stride is chosen such that not all streams fall into the same cache lines.
    scanning->stride = rows < CACHE_LINE_BYTES ? (rows / WORD_BYTES + 1) * WORD_BYTES
                                               : ((rows / CACHE_LINE_BYTES + 1) | 1) * (size_t)CACHE_LINE_BYTES;
    scanning->scanned = calloc(task->slots / GROUP_SLOTS + 1, sizeof *scanning->scanned);
    scanning->exponents = calloc((size_t)task->slots * task->lanes + 1, scanning->stride);
    return scanning->scanned != NULL && scanning->exponents != NULL;
}

void scanning_close(struct task *task) {
    free(task->scanning.scanned);
    free(task->scanning.exponents);
}

bool scanning_next_key(const struct task *task, uint32_t stream, uint32_t *number, uint32_t *key) {
    const struct scanning *scanning = &task->scanning;
    const uint32_t scanned = scanning->scanned[stream / task->lanes / GROUP_SLOTS];
    const uint8_t *exponents = scanning->exponents + stream * scanning->stride;
    *number = next_nonzero(exponents, *number, scanned);
    *key = *number < scanned ? *number << 8 | (255u - exponents[*number]) : NO_KEY;
    return *number < scanned || scanned == task->rows;
}

// Writes +0 to a block of zeros, so that it keeps no -0. Blocks without one are not written to.
static void clear(const struct task *task, uint64_t block) {
    size_t count;
    uint8_t *bytes = task_block(task, block, &count), any = 0;
    count *= task->numbers.value_bytes;
    for (size_t i = 0; i < count; i++)
        any |= bytes[i];
    if (any)
        memset(bytes, 0, count);
}

// Gives blocks of zeros that are to be sent the least exponent that a non-zero block can have.
static void announce_zeros(const struct task *task, uint64_t first, size_t count, uint8_t *exponents) {
    const uint32_t zeros = task->request.zeros;
    const bool begins = task->first == 0 && first < task->streams;
    if (zeros == P4REDUCE_ZEROS_SKIPPED || (zeros == P4REDUCE_ZEROS_FIRST && !begins))
        return;
    const size_t sent = zeros == P4REDUCE_ZEROS_SENT ? count : (size_t)min_of(count, task->streams - first);
    const uint8_t least = task->numbers.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    for (size_t i = 0; i < sent; i++)
        if (exponents[i] == BLOCK_ZERO)
            exponents[i] = least;
}

void task_scan(const struct task *task, uint64_t first, size_t blocks, uint8_t *exponents) {
    size_t count;
    const void *values = task_block(task, first, &count);
    const uint64_t left = task->count - first * task->block_size;
    const bool negative_zeros = numbers_scan(&task->numbers, values, min_of(left, (uint64_t)blocks * task->block_size),
                                             task->block_size, exponents);
    announce_zeros(task, first, blocks, exponents);
    for (size_t i = 0; negative_zeros && !task->request.read_only && i < blocks; i++)
        if (exponents[i] == BLOCK_ZERO)
            clear(task, first + i);
}

// Scans the streams from `stream` on in one row. Returns how many blocks it scanned.
static uint32_t scan_row(struct task *task, uint32_t stream, uint32_t row) {
    const uint64_t block = (uint64_t)row * task->streams + task->first_stream + stream;
    if (block >= task->blocks)
        return 0;
    const uint32_t streams = (uint32_t)min_of(GROUP_SLOTS * task->lanes, task->slots * task->lanes - stream);
    const uint32_t count = (uint32_t)min_of(streams, task->blocks - block);
    uint8_t exponents[GROUP_SLOTS * MAX_LANES];
    task_scan(task, block, count, exponents);
    if (task->colocated != NULL)
        colocated_agree(task->colocated, block, count, exponents);
    for (uint32_t i = 0; i < count; i++) {
        task->scanning.exponents[(stream + i) * task->scanning.stride + row] = exponents[i];
        task->scanning.zeros += exponents[i] == BLOCK_ZERO;
    }
    return count;
}

// Returns the row after the next piece of a group.
static uint32_t end_of_piece(const struct task *task, uint32_t group) {
    const uint32_t begin = task->scanning.scanned[group];
    return begin + (uint32_t)min_of(task->scanning.piece, task->rows - begin);
}

bool scanning_may_go_on(const struct task *task, uint32_t slot) {
    const uint32_t group = slot / GROUP_SLOTS, end = end_of_piece(task, group);
    if (task->colocated == NULL || end == 0)
        return true;
    const uint64_t streams = min_of((uint64_t)(group + 1) * GROUP_SLOTS * task->lanes, task->streams);
    return colocated_have_scanned(task->colocated, min_of((uint64_t)(end - 1) * task->streams + streams, task->blocks));
}

uint32_t scanning_more(struct task *task, uint32_t slot) {
    const uint32_t group = slot / GROUP_SLOTS, begin = task->scanning.scanned[group], end = end_of_piece(task, group);
    uint32_t blocks = 0;
    for (uint32_t row = begin; row < end; row++)
        blocks += scan_row(task, group * GROUP_SLOTS * task->lanes, row);
    task->scanning.scanned[group] = end;
    return blocks;
}
