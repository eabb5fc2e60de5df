// SPDX-License-Identifier: Apache-2.0
#include "task.h"

#include "structures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE_BYTES = 64 };

static const char *const TYPE_NAMES[] = {
    [P4REDUCE_FLOAT32] = "float32",
    [P4REDUCE_INT32] = "int32",
    [P4REDUCE_FLOAT16] = "float16",
    [P4REDUCE_BFLOAT16] = "bfloat16",
};

static bool take_name(char *to, const char *from, const char *otherwise) {
    const char *name = from != NULL ? from : otherwise;
    return strlen(name) < NAME_BYTES && strcpy(to, name) != NULL;
}

static p4reduce_status check(const p4reduce_request *request, p4reduce_error *error) {
    if (request->type < P4REDUCE_FLOAT32 || request->type > P4REDUCE_BFLOAT16)
        return error_fill(error, P4REDUCE_INVALID,
                          "type is %" PRIu32 ": supported are float32 (%d), int32 (%d), float16 (%d) and bfloat16 (%d)",
                          request->type, P4REDUCE_FLOAT32, P4REDUCE_INT32, P4REDUCE_FLOAT16, P4REDUCE_BFLOAT16);
    const unsigned bytes = request->type == P4REDUCE_FLOAT32 || request->type == P4REDUCE_INT32 ? 4 : 2;
    if (request->count > 0 && (request->data == NULL || (uintptr_t)request->data % bytes != 0))
        return error_fill(error, P4REDUCE_INVALID, "data is at %p: it must be a multiple of %u", request->data, bytes);
    if (request->wire > P4REDUCE_WIRE_INT8 || (request->type == P4REDUCE_INT32 && request->wire != P4REDUCE_WIRE_INT32))
        return error_fill(error, P4REDUCE_INVALID,
                          "wire is %" PRIu32 ": supported are int32 (%d), and of floats int16 (%d) and int8 (%d)",
                          request->wire, P4REDUCE_WIRE_INT32, P4REDUCE_WIRE_INT16, P4REDUCE_WIRE_INT8);
    if (request->residual != NULL && (request->type != P4REDUCE_FLOAT32 || (uintptr_t)request->residual % 4 != 0))
        return error_fill(error, P4REDUCE_INVALID, "residual is at %p: it must be a multiple of 4, and of float32 data",
                          (void *)request->residual);
    if (request->type == P4REDUCE_INT32 && request->divisor != 0 && request->divisor != 1)
        return error_fill(error, P4REDUCE_INVALID, "divisor is %g: int32 sums are not divided",
                          (double)request->divisor);
    if (request->zeros > P4REDUCE_ZEROS_SENT)
        return error_fill(error, P4REDUCE_INVALID,
                          "zeros is %" PRIu32 ": supported are skipped (%d), first (%d) and sent (%d)", request->zeros,
                          P4REDUCE_ZEROS_SKIPPED, P4REDUCE_ZEROS_FIRST, P4REDUCE_ZEROS_SENT);
    if (!(request->timeout >= 0))
        return error_fill(error, P4REDUCE_INVALID, "timeout is %g: it must be 0 or more seconds", request->timeout);
    return P4REDUCE_OK;
}

struct task *task_new(const p4reduce_membership *membership, const p4reduce_request *theirs, p4reduce_error *error) {
    p4reduce_request request;
    if (!structure_in(&request, sizeof request, theirs)) {
        error_fill(error, P4REDUCE_INVALID, "request is not one that this version of the library understands");
        return NULL;
    }
    if (check(&request, error) != P4REDUCE_OK)
        return NULL;
    struct numbers numbers;
    if (!numbers_of(&numbers, kernels_chosen(), request.type, request.wire, membership->world_size)) {
        error_fill(error, P4REDUCE_INVALID, "wire is int8 of %" PRIu32 " ranks: accepted are up to 127",
                   membership->world_size);
        return NULL;
    }
    numbers.divisor = request.divisor == 1 ? 0 : request.divisor;
    const uint32_t streams = membership->slots * membership->lanes;
    const unsigned block_size = membership->block_size * numbers.per_word;
    const uint64_t blocks = request.count / block_size + (request.count % block_size != 0);
    const uint64_t length = blocks / streams + (blocks % streams != 0);
    if (length > MAX_STREAM_LENGTH) {
        error_fill(error, P4REDUCE_INVALID,
                   "tensor has %" PRIu64 " blocks, %" PRIu64 " in each of %" PRIu32
                   " streams: accepted are up to %" PRIu64
                   " a stream; join the job with more slots, or reduce the tensor in parts",
                   blocks, length, streams, MAX_STREAM_LENGTH);
        return NULL;
    }
    struct task *task = calloc(1, sizeof *task);
    if (task == NULL)
        goto no_memory;
    task->request = request;
    if (!take_name(task->dtype, request.dtype, TYPE_NAMES[request.type]) ||
        !take_name(task->reduce_op, request.reduce_op, "sum")) {
        error_fill(error, P4REDUCE_INVALID, "dtype or reduce_op is too long: accepted are up to %d characters",
                   NAME_BYTES - 1);
        free(task);
        return NULL;
    }
    task->request.dtype = task->request.reduce_op = NULL;
    if (request.wire != P4REDUCE_WIRE_INT32) {
        const size_t used = strlen(task->dtype);
        snprintf(task->dtype + used, sizeof task->dtype - used, ":%s", numbers_wire_name(request.wire));
    }
    task->numbers = numbers;
    const uint64_t slots = (blocks + membership->lanes - 1) / membership->lanes;
    // At least one slot, so that an empty tensor is announced too and ranks of different shapes meet.
    task->slots = slots == 0 ? 1 : slots < membership->slots ? (unsigned)slots : membership->slots;
    task->slots_left = task->slots;
    task->block_size = block_size;
    task->blocks = blocks;
    task->streams = streams;
    task->length = length;
    task->width = ((size_t)streams / CACHE_LINE_BYTES + 2) * CACHE_LINE_BYTES;
    if (task->width % (2 * CACHE_LINE_BYTES) == 0)
        task->width += CACHE_LINE_BYTES;
    task->exponents = malloc(length * task->width);
    task->groups = malloc((length / ROWS_A_GROUP + 1) * task->width);
    if ((task->exponents == NULL && length > 0) || task->groups == NULL)
        goto no_memory;
    return task;

no_memory:
    task_free(task);
    error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation of %" PRIu64 " blocks", blocks);
    return NULL;
}

void task_free(struct task *task) {
    if (task != NULL) {
        free(task->exponents);
        free(task->groups);
        free(task);
    }
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

// Blocks of zeros that are sent all the same have the least exponent of those that are not zero.
static void announce_zeros(const struct task *task, uint8_t *row, uint32_t blocks) {
    const uint32_t zeros = task->request.zeros;
    const uint8_t least = task->request.type == P4REDUCE_INT32 ? BLOCK_NOT_FINITE : 1;
    if (zeros == P4REDUCE_ZEROS_SKIPPED || (zeros == P4REDUCE_ZEROS_FIRST && task->scanned > 0))
        return;
    for (uint32_t stream = 0; stream < blocks; stream++)
        if (row[stream] == BLOCK_ZERO)
            row[stream] = least;
}

static void scan_row(struct task *task) {
    const uint64_t begin = task->scanned * task->streams, left = task->blocks - begin;
    const uint32_t blocks = left < task->streams ? (uint32_t)left : task->streams;
    const uint64_t first_value = begin * task->block_size, values_left = task->request.count - first_value;
    const uint64_t row_values = (uint64_t)blocks * task->block_size;
    uint8_t *row = task->exponents + task->scanned * task->width;
    const uint8_t *values = (const uint8_t *)task->request.data + task->numbers.value_bytes * first_value;
    bool negative_zeros = numbers_scan(&task->numbers, values, values_left < row_values ? values_left : row_values,
                                       task->block_size, row);
    announce_zeros(task, row, blocks);
    memset(row + blocks, BLOCK_ZERO, task->streams - blocks);
    for (uint32_t stream = 0; stream < blocks; stream++)
        task->zeros += row[stream] == BLOCK_ZERO;
    negative_zeros = negative_zeros && !task->request.read_only;
    for (uint32_t stream = 0; negative_zeros && stream < blocks; stream++)
        if (row[stream] == BLOCK_ZERO)
            clear(task, begin + stream);
    uint8_t *group = task->groups + task->scanned / ROWS_A_GROUP * task->width;
    if (task->scanned % ROWS_A_GROUP == 0)
        memset(group, BLOCK_ZERO, task->streams);
    for (uint32_t stream = 0; stream < blocks; stream++)
        group[stream] |= row[stream];
    task->scanned++;
}

// The first scanned row at or after `row` in which the stream's block is not zero; `scanned` or more if there is none.
static uint64_t find_nonzero(const struct task *task, uint32_t stream, uint64_t row) {
    while (row < task->scanned && task->exponents[row * task->width + stream] == BLOCK_ZERO) {
        row++;
        while (row % ROWS_A_GROUP == 0 && row < task->scanned &&
               task->groups[row / ROWS_A_GROUP * task->width + stream] == BLOCK_ZERO)
            row += ROWS_A_GROUP;
    }
    return row;
}

size_t task_quantise(const struct task *task, uint64_t block, unsigned exponent, uint8_t *wire) {
    size_t count;
    const void *values = task_block(task, block, &count);
    const uint64_t first = block * task->block_size;
    numbers_quantise(&task->numbers, values, count, exponent, first, wire);
    if (task->request.residual != NULL)
        numbers_residual(&task->numbers, values, wire, count, exponent, task->request.residual + first);
    return numbers_words(&task->numbers, count);
}

uint32_t task_next_key(struct task *task, uint32_t stream, uint64_t number) {
    for (;;) {
        number = find_nonzero(task, stream, number);
        if (number < task->scanned)
            return (uint32_t)number << 8 | (255u - task->exponents[number * task->width + stream]);
        if (task->scanned == task->length)
            return NO_KEY;
        number = task->scanned;
        scan_row(task);
    }
}
