// SPDX-License-Identifier: Apache-2.0
// An operation under way: its blocks, and how they are striped over streams.
#ifndef P4REDUCE_TASK_H
#define P4REDUCE_TASK_H

#include "base/fingerprint.h"
#include "base/min.h"
#include "kernels/numbers.h"
#include "protocol/gather.h"
#include "protocol/colocated.h"
#include "wire/constants.h"

// The most blocks of a stream: block numbers are announced in 24 bits.
#define MAX_STREAM_LENGTH (UINT64_C(1) << 24)

// SCAN_BLOCKS: blocks scanned between packets; each group of slots has a share of them, a piece. GROUP_SLOTS: slots
// that are scanned together, because their blocks of a row are adjacent in memory.
enum { SCAN_BLOCKS = 4096, GROUP_SLOTS = 16, CACHE_LINE_BYTES = 64 };

// Room for the text of task_describe.
enum { TASK_TEXT_BYTES = NAME_BYTES + NUMBERS_BYTES + 26 };

// The exponents of an operation's blocks, as far as they have been scanned: a piece of a group of slots at a time, as
// packets need them.
struct scanning {
    uint32_t *scanned;  // rows scanned of each group of slots
    uint32_t piece;     // rows
    uint8_t *exponents; // stream after stream; BLOCK_ZERO for blocks that are not to be sent, or not scanned
    size_t stride;      // bytes from one stream to the next
    uint64_t zeros;     // blocks scanned that are not to be sent
};

// An operation, or a part of one. Block b is number b / streams of stream b % streams. A row has one block of each
// stream. A worker with a share of the job's slots counts streams from its own first.
struct task {
    struct task *next, *previous; // in the order of their submission
    p4reduce_request request;
    char dtype[NUMBERS_BYTES], reduce_op[NAME_BYTES];
    // The words to add: the request's values, or the gather of all ranks' values.
    struct numbers numbers;
    void *data;
    uint64_t first; // for a part of a request: its first value
    uint64_t count;
    struct gather *gather;       // NULL if each rank adds its own values
    struct colocated *colocated; // for a part of a request: ranks whose values the task carries, too; NULL for none
    bool at_once;                // the first round carries values, and is the only one
    uint32_t counter;
    uint32_t fingerprint;
    unsigned all_slots;  // slots of the job that it uses, from the first
    unsigned slots;      // how many of these the worker has
    unsigned slots_left; // how many of the worker's have not finished
    unsigned block_size; // values
    uint64_t blocks;
    uint32_t lanes, streams; // lanes of a slot, streams of the job
    uint32_t first_stream;   // the worker's first stream
    uint32_t own_slots;      // all slots of the worker
    uint32_t rows;
    struct scanning scanning;
};

// Makes a task of a caller's request. in_packets: whether a worker sends it in packets; otherwise nothing is gathered,
// and other code scans it. task_free frees it. Returns NULL if the request is not accepted, and `error` says why.
struct task *task_new(const p4reduce_membership *membership, const p4reduce_request *theirs, bool in_packets,
                      p4reduce_error *error);

// Makes a task of some of another task's blocks, with the same numbers. Returns NULL if there is no memory.
struct task *task_part(const struct task *whole, uint64_t first_block, uint64_t blocks, bool in_packets);

// Stripes a task over the first `slots` of the job's slots, if it was made for another number of slots and no worker
// has it yet. Returns false if that is impossible, and `error` says why.
bool task_deal_anew(struct task *task, uint32_t slots, p4reduce_error *error);

// Sets a task's number and fingerprint, and this rank's seed for stochastic rounding.
void task_identify(struct task *task, uint32_t counter, uint32_t rank);

void task_free(struct task *task);

// Completes the sum when all slots have finished. Returns false if another rank changed this rank's words.
bool task_finish(struct task *task);

// Writes a block's values into a packet. Returns how many words they take.
size_t task_quantise(const struct task *task, uint64_t block, unsigned exponent, uint8_t *wire);

// Describes an operation in words: "<sum of 5 float32>".
void task_describe(const struct task *task, char text[TASK_TEXT_BYTES]);

// The functions of scanning.c.

// Prepares the scan of a task, whose other fields are set. Returns false if there is no memory.
bool scanning_open(struct task *task);

void scanning_close(struct task *task);

// Finds the exponents of `blocks` blocks from number `first` on. Blocks of zeros that are to be sent get the least
// exponent of a non-zero block. In other blocks of zeros, a -0 becomes +0.
void task_scan(const struct task *task, uint64_t first, size_t blocks, uint8_t *exponents);

// Finds the key of a stream's first block to be sent, from `number` on: NO_KEY if there is none. Returns false if the
// scan has not come that far; `number` then becomes the first block that it can be.
bool scanning_next_key(const struct task *task, uint32_t stream, uint32_t *number, uint32_t *key);

// Prefetches the memory that scanning_next_key will read.
static inline void scanning_expect(const struct task *task, uint32_t stream, uint32_t number) {
    __builtin_prefetch(task->scanning.exponents + stream * task->scanning.stride + number);
}

// Returns whether scanning_more may be called for a slot: co-located ranks have scanned as far.
bool scanning_may_go_on(const struct task *task, uint32_t slot);

// Scans the next piece of the streams of a slot's group. Returns how many blocks of the tensor it has.
uint32_t scanning_more(struct task *task, uint32_t slot);

// Returns the address of a block's values, and their number in `count`.
static inline void *task_block(const struct task *task, uint64_t block, size_t *count) {
    const uint64_t begin = block * task->block_size;
    *count = min_of(task->count - begin, task->block_size);
    return (uint8_t *)task->data + task->numbers.value_bytes * begin;
}

#endif
