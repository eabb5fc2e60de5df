// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one host share, whether they are all of the job or some. Nothing in it is a pointer, as it
// lies elsewhere in each process.
//
//   segment_head   Written by the first rank that has something to say, or by the leader, which is number 0 here. All
//                  ranks add to `added`.
//   rank_record    One for each rank, which alone writes it. Others clear `resting`, and add to `added`.
//   area           Buffers for values: buffers.h.
//
// Some words tell that others were written: `number`, `scanned`, `through`, `arrived`, `ended`, `taken`, `told`. They
// are stored with release order at least, and loaded with acquire. In two places that is not enough, as each of two ranks
// writes one word and then reads the other's (Dekker). There, all accesses are sequentially consistent:
//
// - A rank stores its call and then looks at the others' calls. Of two that differ, one sees it (intranode/calls.c).
// - A rank stores that it rests, and looks once more for what it waits for. Others store that, and then look whether it
//   rests (intranode/wakeup.c).
#ifndef P4REDUCE_SEGMENT_H
#define P4REDUCE_SEGMENT_H

#include "shm/regions.h"
#include "wire/constants.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    LAYOUT = 8, // of all that is in it: ranks with another one do not meet
    LINE_BYTES = 64,
    CALLS = 4, // calls that a rank may be ahead of others: the size of their ring
    CALL_TEXT_BYTES = 96, // TASK_TEXT_BYTES
};

enum phase {
    SCANNED,  // each rank knows which of its blocks are zero
    REDUCED,  // the pieces' sums are there
    GATHERED, // each rank has them
    PHASES,
};

// What a rank has called: an operation, or a part of one. All ranks number them alike, from 1 on. Call n is at n mod CALLS.
struct call {
    _Alignas(LINE_BYTES) _Atomic uint64_t number; // 0 while there was none
    uint32_t operation, fingerprint, type;
    float divisor;
    uint64_t data;        // where the tensor lies in the rank's memory
    struct region region; // in which it lies, for others to map
    uint32_t in_place;    // others may write the sums there
    char text[CALL_TEXT_BYTES];
    _Atomic uint64_t scanned; // blocks that are scanned and copied, from the part's first
};

struct rank_record {
    _Alignas(LINE_BYTES) _Atomic uint32_t resting; // it is to be notified of what happens
    int32_t pid;
    uint64_t probe, probed_at; // a number, and where the rank's own memory has it
    int32_t file;              // that has the segment there
    cpu_set_t processors;      // on which it may run
    _Alignas(LINE_BYTES) _Atomic uint64_t through[PHASES]; // windows
    _Atomic uint64_t taken; // parts of which it has the sums
    _Atomic uint64_t added; // of its blocks that are not zero: those that were added up in place, by all ranks
    struct call calls[CALLS];
};

// The first rank's that says it fails.
struct failure {
    _Atomic uint64_t claimed; // by compare-and-swap: from which call on it counts, and by whom (intranode/calls.c)
    _Atomic uint32_t told;    // the rest is there
    p4reduce_error error;     // as other ranks report it
};

struct segment_head {
    _Atomic uint64_t mismatch; // the number of a call that ranks have made in different ways; 0 for none
    struct failure failure;
    _Atomic uint64_t added; // blocks that are not zero everywhere: those of operations in place
    // Ranks of other hosts, of which the leader waits for some, and when it last said so: in whole seconds.
    _Atomic uint32_t awaited[8], awaited_at;
    _Atomic uint32_t held; // then, whether the controller held operations
};

struct segment {
    uint8_t *base; // NULL until it is open, and for a leader that is alone on its host
    size_t bytes;
    uint32_t index, count;    // of this rank, on the host; the leader is 0
    uint8_t ranks[MAX_RANKS]; // their numbers in the job
    int connections[MAX_RANKS]; // as of rendezvous_join
    bool readable;            // all ranks can read each other's memory
    bool mappable;            // all ranks can map each other's regions
    uint32_t processors;      // on which they may run together
};

// Sets which ranks are here: all of the job, or those that share a stream with this one.
void segment_members(struct segment *segment, const p4reduce_membership *membership);

// Meets the other ranks. False if they are not all there in time, or cannot share memory: then `error` says why. probe:
// finds out whether ranks can read and map each other's memory.
bool segment_open(struct segment *segment, size_t area_bytes, const p4reduce_local_options *options, bool probe,
                  p4reduce_error *error);
void segment_close(struct segment *segment);

struct segment_head *segment_head(const struct segment *segment);
struct rank_record *segment_rank(const struct segment *segment, uint32_t index);
// A rank's record of the call of that number, which may be another call's yet.
struct call *segment_call(const struct segment *segment, uint32_t index, uint64_t number);
uint8_t *segment_area(const struct segment *segment);

// Reads another rank's memory, of which `from` is an address there. False where the kernel does not let it.
bool segment_read(const struct segment *segment, uint32_t index, uint64_t from, void *to, size_t size);

#endif
