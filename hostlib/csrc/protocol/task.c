// SPDX-License-Identifier: Apache-2.0
#include "protocol/task.h"

#include "base/membership.h"
#include "base/min.h"
#include "base/structures.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 4 };

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
    if (isnan(request->divisor))
        return error_fill(error, P4REDUCE_INVALID, "divisor is nan: it must be a number");
    if (request->zeros > P4REDUCE_ZEROS_SENT)
        return error_fill(error, P4REDUCE_INVALID,
                          "zeros is %" PRIu32 ": supported are skipped (%d), first (%d) and sent (%d)", request->zeros,
                          P4REDUCE_ZEROS_SKIPPED, P4REDUCE_ZEROS_FIRST, P4REDUCE_ZEROS_SENT);
    if (!(request->timeout >= 0))
        return error_fill(error, P4REDUCE_INVALID, "timeout is %g: it must be 0 or more seconds", request->timeout);
    return P4REDUCE_OK;
}

// Makes the task one of the gather of all ranks' values, as integers.
static bool gather(struct task *task, const p4reduce_membership *membership, size_t block_size) {
    task->gather = gather_new(membership, &task->numbers, block_size, &task->request);
    if (task->gather == NULL)
        return false;
    task->data = task->gather->values;
    task->count = task->request.count * membership->world_size;
    return numbers_of(&task->numbers, task->numbers.kernels, P4REDUCE_INT32, P4REDUCE_WIRE_INT32,
                      membership->world_size);
}

// Divides the values into blocks, and stripes these over streams.
static void deal(struct task *task) {
    task->blocks = task->count / task->block_size + (task->count % task->block_size != 0);
    task->rows = (uint32_t)(task->blocks / task->streams + (task->blocks % task->streams != 0));
    task->at_once = task->blocks <= task->lanes && task->numbers.type == P4REDUCE_INT32;
    const uint64_t slots = (task->blocks + task->lanes - 1) / task->lanes, all = task->streams / task->lanes;
    // At least one slot, so that an empty tensor is announced too, and a rank with another shape gets an error.
    task->all_slots = (unsigned)(slots == 0 ? 1 : min_of(slots, all));
    const uint32_t before = task->first_stream / task->lanes;
    const unsigned after = task->all_slots > before ? task->all_slots - before : 0;
    task->slots = (unsigned)min_of(after, task->own_slots);
    task->slots_left = task->slots;
}

// Returns whether the streams can have so many blocks.
static bool check_streams(uint64_t blocks, uint32_t streams, p4reduce_error *error) {
    const uint64_t rows = blocks / streams + (blocks % streams != 0);
    if (rows > MAX_STREAM_LENGTH)
        error_fill(error, P4REDUCE_INVALID,
                   "tensor has %" PRIu64 " blocks, %" PRIu64 " in each of %" PRIu32
                   " streams: accepted are up to %" PRIu64
                   " a stream; join the job with more slots, or reduce the tensor in parts",
                   blocks, rows, streams, MAX_STREAM_LENGTH);
    return rows <= MAX_STREAM_LENGTH;
}

struct task *task_new(const p4reduce_membership *membership, const p4reduce_request *theirs, bool in_packets,
                      p4reduce_error *error) {
    p4reduce_request request;
    *error = (p4reduce_error){.size = sizeof *error};
    if (!structure_in(&request, sizeof request, theirs, "request", error) || check(&request, error) != P4REDUCE_OK)
        return NULL;
    struct numbers numbers;
    if (!numbers_of(&numbers, kernels_chosen(), request.type, request.wire, membership->world_size)) {
        error_fill(error, P4REDUCE_INVALID, "wire is int8 of %" PRIu32 " ranks: accepted are up to 127",
                   membership->world_size);
        return NULL;
    }
    numbers.divisor = request.divisor == 1 ? 0 : request.divisor;
    const uint32_t streams = membership_all_slots(membership) * membership->lanes;
    unsigned block_size = membership->block_size * numbers.per_word;
    const uint64_t blocks = request.count / block_size + (request.count % block_size != 0);
    if (!check_streams(blocks, streams, error))
        return NULL;
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
    task->data = request.data;
    task->count = request.count;
    if (in_packets && gather_fits(membership, request.type, request.count)) {
        if (!gather(task, membership, block_size))
            goto no_memory;
        block_size = membership->block_size;
    }
    task->block_size = block_size;
    task->lanes = membership->lanes;
    task->streams = streams;
    task->first_stream = membership->first_slot * membership->lanes;
    task->own_slots = membership->slots;
    deal(task);
    if (in_packets && !scanning_open(task))
        goto no_memory;
    return task;

no_memory:
    task_free(task);
    error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation of %" PRIu64 " blocks", blocks);
    return NULL;
}

struct task *task_part(const struct task *whole, uint64_t first_block, uint64_t blocks, bool in_packets) {
    struct task *part = malloc(sizeof *part);
    if (part == NULL)
        return NULL;
    *part = *whole;
    const uint64_t first = first_block * whole->block_size, most = blocks * whole->block_size;
    part->data = (uint8_t *)whole->data + first * whole->numbers.value_bytes;
    part->first = whole->first + first;
    part->count = min_of(whole->count - first, most);
    part->scanning = (struct scanning){.zeros = 0};
    deal(part);
    if (!in_packets || scanning_open(part))
        return part;
    task_free(part);
    return NULL;
}

bool task_deal_anew(struct task *task, uint32_t slots, p4reduce_error *error) {
    if (task->own_slots == slots)
        return true;
    if (!check_streams(task->blocks, slots * task->lanes, error))
        return false;
    const uint32_t streams = slots * task->lanes;
    const bool scans = task->scanning.exponents != NULL,
               same = task->blocks <= task->streams && task->blocks <= streams;
    task->streams = streams;
    task->own_slots = slots;
    if (same)
        return true; // one block for each stream, in the same slots
    scanning_close(task);
    task->scanning = (struct scanning){.zeros = 0};
    deal(task);
    if (!scans || scanning_open(task))
        return true;
    error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation of %" PRIu64 " blocks", task->blocks);
    return false;
}

void task_identify(struct task *task, uint32_t counter, uint32_t rank) {
    task->counter = counter;
    task->fingerprint = fingerprint(counter, task->dtype, task->reduce_op, task->request.count);
    task->numbers.seed = task->fingerprint | rank;
}

void task_free(struct task *task) {
    if (task != NULL) {
        free(task->gather);
        free(task->colocated);
        scanning_close(task);
        free(task);
    }
}

bool task_finish(struct task *task) {
    return task->gather == NULL || gather_finish(task->gather, task->fingerprint);
}

size_t task_quantise(const struct task *task, uint64_t block, unsigned exponent, uint8_t *wire) {
    size_t count;
    const void *values = task_block(task, block, &count);
    const uint64_t first = task->first + block * task->block_size;
    const size_t words = numbers_words(&task->numbers, count);
    if (task->colocated != NULL && !colocated_has_own(task->colocated, block)) {
        memset(wire, 0, words * WORD_BYTES);
    } else {
        numbers_quantise(&task->numbers, values, count, exponent, first, wire);
        if (task->request.residual != NULL && task->gather == NULL)
            numbers_residual(&task->numbers, values, wire, count, exponent, task->request.residual + first);
    }
    if (task->colocated != NULL)
        colocated_add(task->colocated, block, count, exponent, wire);
    return words;
}

void task_describe(const struct task *task, char text[TASK_TEXT_BYTES]) {
    snprintf(text, TASK_TEXT_BYTES, "<%s of %" PRIu64 " %s>", task->reduce_op, task->request.count, task->dtype);
}
