// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_share.h"

#include <string.h>

enum { CHUNK_VALUES = 16384 };

static uint64_t smaller(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

// Blocks of zeros that count all the same have the least exponent of those that are not zero, as in scanning.c.
static void announce_zeros(const struct task *task, uint64_t block, size_t blocks, uint8_t *exponents) {
    const uint32_t zeros = task->request.zeros;
    const uint8_t least = task->numbers.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    for (size_t i = 0; i < blocks; i++)
        if (exponents[i] == BLOCK_ZERO &&
            (zeros == P4REDUCE_ZEROS_SENT ||
             (zeros == P4REDUCE_ZEROS_FIRST && task->first == 0 && block + i < task->streams)))
            exponents[i] = least;
}

// Copies blocks that are not zero, and clears those that have a -0.
static void copy(struct host *host, const struct part *part, uint64_t block, size_t blocks, bool clear) {
    const struct task *task = part->task;
    const size_t value_bytes = task->numbers.value_bytes, block_bytes = task->block_size * value_bytes;
    uint8_t *copies = host_values(&host->memory, part->number, host->memory.index);
    const uint8_t *exponents = host_exponents(&host->memory, part->number, host->memory.index);
    for (uint64_t at = block; at < block + blocks; at++) {
        size_t count;
        void *values = task_block(task, at, &count);
        if (exponents[at] != BLOCK_ZERO) {
            memcpy(copies + at * block_bytes, values, count * value_bytes);
            host->stats.blocks_sent++;
        } else {
            host->stats.blocks_skipped++;
            if (clear)
                memset(values, 0, count * value_bytes);
        }
    }
}

bool share_scan(struct host *host) {
    const struct part *part = &host->parts[(host->begun - 1) % PLACES];
    const struct task *task = part->task;
    const uint64_t block = host->scanned, most = CHUNK_VALUES / task->block_size;
    const size_t blocks = (size_t)smaller(part->blocks - block, most);
    if (blocks > 0) {
        size_t count;
        const void *values = task_block(task, block, &count);
        uint8_t *exponents = host_exponents(&host->memory, part->number, host->memory.index) + block;
        const uint64_t left = task->count - block * task->block_size;
        const bool negative_zeros =
            numbers_scan(&task->numbers, values, smaller(left, (uint64_t)blocks * task->block_size), task->block_size,
                         exponents);
        announce_zeros(task, block, blocks, exponents);
        copy(host, part, block, blocks, negative_zeros && !task->request.read_only);
    }
    host->scanned += blocks;
    host->large |= task->count > SMALL_VALUES;
    atomic_store_explicit(&host_call(&host->memory, part->number, host->memory.index)->scanned, host->scanned,
                          memory_order_release);
    return host->scanned < part->blocks;
}

void share_take(struct host *host, const struct part *part) {
    const struct task *task = part->task;
    const struct numbers *numbers = &task->numbers;
    const uint8_t *own = host_exponents(&host->memory, part->number, host->memory.index);
    const uint8_t *agreed = host_agreed(&host->memory, part->number), *sums = host_sums(&host->memory, part->number);
    const size_t stride = numbers_words(numbers, task->block_size) * sizeof(uint32_t);
    for (uint64_t block = 0; block < part->blocks; block++) {
        if (agreed[block] == BLOCK_ZERO)
            continue;
        host->stats.blocks_received++;
        size_t count;
        void *values = task_block(task, block, &count);
        if (task->request.residual != NULL && own[block] != BLOCK_ZERO)
            task_quantise(task, block, agreed[block], host->words);
        if (!task->request.read_only)
            numbers_dequantise(numbers, sums + block * stride, count, agreed[block], values);
    }
}
