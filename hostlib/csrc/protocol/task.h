// SPDX-License-Identifier: Apache-2.0
// An operation under way: its blocks, and how they are dealt to streams.
#ifndef P4REDUCE_TASK_H
#define P4REDUCE_TASK_H

#include "base/fingerprint.h"
#include "base/min.h"
#include "kernels/numbers.h"
#include "protocol/gather.h"
#include "protocol/colocated.h"
#include "wire/constants.h"

// Blocks: their numbers are announced in 24 bits.
#define MAX_STREAM_LENGTH (UINT64_C(1) << 24)

// Blocks scanned between packets, of which a piece is a group's share. Slots scanned together: neighbours in memory.
enum { SCAN_BLOCKS = 4096, GROUP_SLOTS = 16, CACHE_LINE_BYTES = 64 };

// Room for what task_describe says.
enum { TASK_TEXT_BYTES = NAME_BYTES + NUMBERS_BYTES + 26 };

// What is known of an operation's blocks: the streams of a few slots are scanned a piece at a time, as far as packets
// need.
struct scanning {
    uint32_t *scanned;  // of each group of slots: rows
    uint32_t piece;     // rows
    uint8_t *exponents; // of blocks, stream after stream: BLOCK_ZERO for those that are not to be sent, or not scanned
    size_t stride;      // bytes from one stream to the next
    uint64_t zeros;     // blocks scanned that are not to be sent
};

// Block b is number b / streams of stream b % streams; a row has one of each stream. What a worker with a share of the
// job's slots knows of a stream counts from the first of its own.
struct task {
    struct task *next, *previous; // in the order of their submission
    p4reduce_request request;
    char dtype[NUMBERS_BYTES], reduce_op[NAME_BYTES];
    // What is added: the request's values, or all ranks'.
    struct numbers numbers;
    void *data;
    uint64_t first; // value of the request's, of a task that is a part of it
    uint64_t count;
    struct gather *gather; // NULL where each rank adds its values
    struct colocated *colocated; // whose values the task carries, too, as parts of requests do; NULL for none
    bool at_once;          // the first round carries values, and is the only one
    uint32_t counter;
    uint32_t fingerprint;
    unsigned all_slots;  // of the job that it uses, from the first
    unsigned slots;      // of these, how many the worker has
    unsigned slots_left; // that are not finished
    unsigned block_size; // values
    uint64_t blocks;
    uint32_t lanes, streams; // of a slot, of the job
    uint32_t first_stream;   // that the worker has
    uint32_t own_slots;      // that it has
    uint32_t rows;
    struct scanning scanning;
};

// What the worker makes of a caller's request. in_packets: else it is not for a worker, nothing is gathered, and
// others scan it.
// NULL where it is not accepted, and `error` says why.
struct task *task_new(const p4reduce_membership *membership, const p4reduce_request *theirs, bool in_packets,
                      p4reduce_error *error);

// A task of some of another's blocks, with numbers like its. NULL where there is no memory.
struct task *task_part(const struct task *whole, uint64_t first_block, uint64_t blocks, bool in_packets);

// Deals a task that was made with other slots, and that no worker has yet, to the first `slots` of the job's. False where
// that cannot be, and `error` says why.
bool task_deal_anew(struct task *task, uint32_t slots, p4reduce_error *error);

// Gives a task its number and fingerprint, and what rounding is random by at this rank.
void task_identify(struct task *task, uint32_t counter, uint32_t rank);

void task_free(struct task *task);

// All slots are finished: the request's values become the sum. False where what came cannot be it.
bool task_finish(struct task *task);

// Puts a block's values into a packet. Returns how many words they take.
size_t task_quantise(const struct task *task, uint64_t block, unsigned exponent, uint8_t *wire);

// What an operation is, in words: "<sum of 5 float32>".
void task_describe(const struct task *task, char text[TASK_TEXT_BYTES]);

// What scanning.c does. Of a task that has all else; false where there is no memory.
bool scanning_open(struct task *task);

void scanning_close(struct task *task);

// Finds the exponents of `blocks` blocks from number `first` on. Those of zeros that are sent all the same have the
// least of those that are not zero; in the others, a -0 becomes +0.
void task_scan(const struct task *task, uint64_t first, size_t blocks, uint8_t *exponents);

// The key of the first block of a stream that is to be sent, from `number` on: NO_KEY if there is none. False where
// that is not known yet; then `number` becomes the first that it can be.
bool scanning_next_key(const struct task *task, uint32_t stream, uint32_t *number, uint32_t *key);

// Has the processor fetch what scanning_next_key will look at.
static inline void scanning_expect(const struct task *task, uint32_t stream, uint32_t number) {
    __builtin_prefetch(task->scanning.exponents + stream * task->scanning.stride + number);
}

// Whether scanning_more can be called for a slot: co-located ranks have scanned as much.
bool scanning_may_go_on(const struct task *task, uint32_t slot);

// Scans the next piece of the streams of a slot and those beside it. Returns how many blocks of the tensor it has.
uint32_t scanning_more(struct task *task, uint32_t slot);

// Where a block's values are, and how many there are of them.
static inline void *task_block(const struct task *task, uint64_t block, size_t *count) {
    const uint64_t begin = block * task->block_size;
    *count = min_of(task->count - begin, task->block_size);
    return (uint8_t *)task->data + task->numbers.value_bytes * begin;
}

#endif
