// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one host share: all ranks of the job, or some. It contains no pointers, because each
// process maps it at another address.
//
//   segment_head   Written by the first rank that has something to report, or by the leader, which is number 0.
//                  All ranks add to `added`.
//   rank_record    One for each rank, which alone writes it. Other ranks clear `sleeping`, and add to `added`.
//   area           Buffers for values: buffers.h.
//
// Some words publish others that were written before: `number`, `scanned`, `completed`, `arrived`, `ended`, `taken` and
// `published`. They are stored with release order at least, and loaded with acquire. All ranks add to `arrived`; these
// read-modify-writes are one release sequence, so a rank that reads the full count sees what all ranks wrote before.
//
// In two places this is not enough, because each of two ranks writes one word and then reads the other's (Dekker's
// pattern). There, all accesses are sequentially consistent:
//
// - A rank stores its call, and then loads the others' calls. If two differ, at least one of the two ranks sees it
//   (intranode/calls.c).
// - A rank stores `sleeping`, and then checks its condition once more. Other ranks make the condition true, and then
//   load `sleeping`. So the rank sees the condition, or the others see that it sleeps (intranode/wakeup.c).
#ifndef P4REDUCE_SEGMENT_H
#define P4REDUCE_SEGMENT_H

#include "base/awaited.h"
#include "shm/regions.h"
#include "shm/rendezvous.h"
#include "wire/constants.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    LAYOUT = 9, // version of the memory's layout: ranks with another one do not meet
    LINE_BYTES = 64,
    CALLS = 4,            // size of the ring of calls: a rank may be ahead of others by up to so many calls
    CALL_TEXT_BYTES = 96, // at least TASK_TEXT_BYTES
};

// The phases of a window (intranode/local.h).
enum phase {
    SCANNED,  // each rank has published where its values are and, unless they seem dense, which blocks are zero
    REDUCED,  // the pieces' sums are there
    GATHERED, // each rank has the sums
    PHASES,
};

// A rank's call: an operation, or a part of one. All ranks number calls alike, from 1 on. Call n is at n mod CALLS. The
// fields before `scanned` are written before `number`, and read after it.
struct call {
    _Alignas(LINE_BYTES) _Atomic uint64_t number; // 0 before the first call
    uint32_t operation, fingerprint, type;
    float divisor;
    uint64_t data;        // address of the tensor in the rank's process
    struct region region; // the region in which it lies, for others to map
    uint32_t in_place;    // others may write the sums there
    char text[CALL_TEXT_BYTES];
    _Atomic uint64_t scanned; // blocks that are scanned and copied, from the part's first
};

// A rank's record. It has cache lines of its own, so that ranks do not slow each other down (false sharing).
struct rank_record {
    _Alignas(LINE_BYTES) _Atomic uint32_t sleeping; // the rank sleeps, or is about to, and must be notified
    int32_t pid;
    uint64_t probe, probed_at;                               // a number, and its address in the rank's own memory
    int32_t file;                                            // the rank's descriptor of the segment
    cpu_set_t processors;                                    // on which it may run
    _Alignas(LINE_BYTES) _Atomic uint64_t completed[PHASES]; // windows whose phase it has completed
    _Atomic uint64_t taken;                                  // parts whose sums it has taken
    _Atomic uint64_t added;                                  // its non-zero blocks that any rank has added in place
    struct call calls[CALLS];
};

// The first failure on this host.
struct failure {
    _Atomic uint64_t claimed;   // by compare-and-swap: the first call that fails, and the rank (intranode/calls.c)
    _Atomic uint32_t published; // `error` is written
    p4reduce_error error;       // the error for other ranks
};

// The head of the segment, common to all ranks.
struct segment_head {
    _Atomic uint64_t mismatch; // the number of a call in which ranks differ; 0 for none
    struct failure failure;
    _Atomic uint64_t added; // blocks that are non-zero at some rank, of operations in place
    // The leader's report, for other ranks' texts only, which may see parts of two reports. The ranks for which it
    // waits, and the time of the report in whole seconds.
    _Atomic uint32_t awaited[AWAITED_WORDS], awaited_at;
    _Atomic uint32_t paused; // whether the controller has paused operations
};

// A rank's view of the segment.
struct segment {
    uint8_t *base; // NULL until it is open, and for a leader that is alone on its host
    size_t bytes;
    uint32_t index, count;           // of this rank, on the host; the leader is 0
    uint16_t ranks[MAX_HOST_RANKS];  // their numbers in the job
    int connections[MAX_HOST_RANKS]; // those of rendezvous_join
    bool readable;                   // all ranks can read each other's memory
    bool mappable;                   // all ranks can map each other's regions
    uint32_t processors;             // number of processors that all ranks together may use
};

// Sets the ranks of the segment: all of the job, or those that share a stream with this one.
void segment_members(struct segment *segment, const p4reduce_membership *membership);

// Meets the other ranks, and maps the memory. Returns false if not all come in time, or if they cannot share memory,
// and `error` says why. probe: find out whether ranks can read and map each other's memory.
bool segment_open(struct segment *segment, size_t area_bytes, const p4reduce_local_options *options, bool probe,
                  p4reduce_error *error);
void segment_close(struct segment *segment);

// The parts of the segment.
struct segment_head *segment_head(const struct segment *segment);
struct rank_record *segment_rank(const struct segment *segment, uint32_t index);
// Returns a rank's record for the call of that number. It may still contain an earlier call.
struct call *segment_call(const struct segment *segment, uint32_t index, uint64_t number);
uint8_t *segment_area(const struct segment *segment);

// Reads another rank's memory, at the address `from` there. Returns false if the kernel does not allow it.
bool segment_read(const struct segment *segment, uint32_t index, uint64_t from, void *to, size_t size);

#endif
