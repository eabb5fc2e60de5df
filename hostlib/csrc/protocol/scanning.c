// SPDX-License-Identifier: Apache-2.0
#include "protocol/task.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 8 };

static uint64_t smaller(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

bool scanning_open(struct task *task) {
    struct scanning *scanning = &task->scanning;
    const uint32_t rows = task->rows;
    scanning->piece = task->streams < SCAN_BLOCKS ? SCAN_BLOCKS / task->streams : 1;
    // Of many rows, such that streams are not all in the same lines of the cache.
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

// The first number from `from` on, and below `to`, of a block that is to be sent; `to` if there is none.
static uint32_t find(const uint8_t *exponents, uint32_t from, uint32_t to) {
    while (from < to) {
        const uint32_t begin = from / WORD_BYTES * WORD_BYTES; // a stride has whole words
        uint64_t word;
        memcpy(&word, exponents + begin, sizeof word);
        word = le64toh(word) & UINT64_MAX << 8 * (from - begin); // of BLOCK_ZERO, 0
        if (word != 0)
            return (uint32_t)smaller(begin + (uint32_t)__builtin_ctzll(word) / 8, to);
        from = (uint32_t)smaller(begin + WORD_BYTES, to);
    }
    return from;
}

bool scanning_next_key(const struct task *task, uint32_t stream, uint32_t *number, uint32_t *key) {
    const struct scanning *scanning = &task->scanning;
    const uint32_t scanned = scanning->scanned[stream / task->lanes / GROUP_SLOTS];
    const uint8_t *exponents = scanning->exponents + stream * scanning->stride;
    *number = find(exponents, *number, scanned);
    *key = *number < scanned ? *number << 8 | (255u - exponents[*number]) : NO_KEY;
    return *number < scanned || scanned == task->rows;
}

// Writes +0 to a block of zeros that is not sent, so that it keeps no -0. Blocks without one are not written to.
static void clear(struct task *task, uint64_t block) {
    size_t count;
    uint8_t *bytes = task_block(task, block, &count), any = 0;
    count *= task->numbers.value_bytes;
    for (size_t i = 0; i < count; i++)
        any |= bytes[i];
    if (any)
        memset(bytes, 0, count);
}

// Whether a row's blocks of zeros are to be sent all the same: they have the least exponent of those that are not zero.
static bool sends_zeros(const struct task *task, uint32_t row) {
    const uint32_t zeros = task->request.zeros;
    return zeros == P4REDUCE_ZEROS_SENT || (zeros == P4REDUCE_ZEROS_FIRST && row == 0 && task->first == 0);
}

// Scans the streams from `stream` on in one row. Returns how many blocks that were.
static uint32_t scan_row(struct task *task, uint32_t stream, uint32_t row) {
    const uint64_t block = (uint64_t)row * task->streams + task->first_stream + stream;
    if (block >= task->blocks)
        return 0;
    const uint32_t streams = (uint32_t)smaller(GROUP_SLOTS * task->lanes, task->slots * task->lanes - stream);
    const uint32_t count = (uint32_t)smaller(streams, task->blocks - block);
    const uint64_t first = block * task->block_size;
    const uint64_t values = smaller((uint64_t)count * task->block_size, task->count - first);
    const uint8_t *from = (const uint8_t *)task->data + task->numbers.value_bytes * first;
    uint8_t exponents[GROUP_SLOTS * MAX_LANES];
    const bool negative_zeros = numbers_scan(&task->numbers, from, values, task->block_size, exponents);
    const uint8_t least = task->numbers.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    const uint8_t zero = sends_zeros(task, row) ? least : BLOCK_ZERO;
    for (uint32_t i = 0; i < count; i++)
        exponents[i] = exponents[i] != BLOCK_ZERO ? exponents[i] : zero;
    if (task->neighbours != NULL)
        neighbours_agree(task->neighbours, block, count, exponents);
    for (uint32_t i = 0; i < count; i++) {
        task->scanning.exponents[(stream + i) * task->scanning.stride + row] = exponents[i];
        if (exponents[i] != BLOCK_ZERO)
            continue;
        task->scanning.zeros++;
        if (negative_zeros && !task->request.read_only)
            clear(task, block + i);
    }
    return count;
}

// The row after the next piece of a group's.
static uint32_t end_of_piece(const struct task *task, uint32_t group) {
    const uint32_t begin = task->scanning.scanned[group];
    return begin + (uint32_t)smaller(task->scanning.piece, task->rows - begin);
}

bool scanning_may_go_on(const struct task *task, uint32_t slot) {
    const uint32_t group = slot / GROUP_SLOTS, end = end_of_piece(task, group);
    if (task->neighbours == NULL || end == 0)
        return true;
    const uint64_t streams = smaller((uint64_t)(group + 1) * GROUP_SLOTS * task->lanes, task->streams);
    return neighbours_have_scanned(task->neighbours,
                                   smaller((uint64_t)(end - 1) * task->streams + streams, task->blocks));
}

uint32_t scanning_more(struct task *task, uint32_t slot) {
    const uint32_t group = slot / GROUP_SLOTS, begin = task->scanning.scanned[group], end = end_of_piece(task, group);
    uint32_t blocks = 0;
    for (uint32_t row = begin; row < end; row++)
        blocks += scan_row(task, group * GROUP_SLOTS * task->lanes, row);
    task->scanning.scanned[group] = end;
    return blocks;
}
