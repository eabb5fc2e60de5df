// SPDX-License-Identifier: Apache-2.0
// The memory that ranks of one host share where they share a stream, too. Requests are carried in parts, one after the
// other, which take turns in a few places of it. In each, every rank but the leader has a copy of its blocks that are
// not zero, where they are in its tensor; what nobody writes to takes no memory.
#ifndef P4REDUCE_HOST_MEMORY_H
#define P4REDUCE_HOST_MEMORY_H

#include "shm/meeting.h"
#include "wire/constants.h"

#include <stdatomic.h>

enum {
    PLACES = 4,
    PART_VALUES = 8 << 20, // at most; all ranks of a job split alike
    HOST_LAYOUT = 6,
    CALL_BYTES = 96,
    CACHE_LINE = 64,
};

// Of a failure, by the first rank that tells of one.
struct told_failure {
    _Atomic uint32_t claimed, told; // the rank's number on the host, plus one; 0 for none
    p4reduce_error error;
};

struct host_head {
    _Atomic uint64_t mismatch; // the number of the part, plus one, for which ranks have called different things; or 0
    struct told_failure failure;
    // Ranks of other hosts, of which the leader waits for some, and when it last said so: in whole seconds.
    _Atomic uint32_t awaited[8], awaited_at;
    _Atomic uint32_t held; // then, whether the controller held operations
};

struct host_rank {
    _Alignas(CACHE_LINE) _Atomic uint32_t resting; // it waits to be called
    _Atomic uint64_t taken;                        // parts of which it has the sums
};

// What a rank has called.
struct host_call {
    _Alignas(CACHE_LINE) _Atomic uint64_t number; // of the part, plus one
    uint32_t operation, fingerprint, type;
    char text[CALL_BYTES];
    _Atomic uint64_t scanned; // blocks that are scanned and copied, from the part's first
};

struct place_head {
    _Alignas(CACHE_LINE) _Atomic uint64_t called; // as the first who came has: the part's number plus one, and the
                                                  // fingerprint's 24 bits
    _Atomic uint32_t announced;                   // ranks, over all parts that were here
    _Atomic uint64_t ended;                       // the number, plus one, of the last part whose sums are here
};

struct host_memory {
    uint8_t *base; // NULL where a rank is alone on its host
    size_t bytes;
    uint32_t index, count; // of this rank, on the host; the leader is 0
    uint8_t ranks[MAX_RANKS]; // their numbers in the job
    size_t exponents_bytes;   // of a rank's blocks in a part
};

// Meets the others of the host. False if they are not all there in time: then `error` says why. sockets: one for each
// rank, as of `meeting_hold`.
bool host_memory_open(struct host_memory *memory, const p4reduce_membership *membership, const char *meeting,
                      double timeout, int *sockets, p4reduce_error *error);
void host_memory_close(struct host_memory *memory);

struct host_head *host_head(const struct host_memory *memory);
struct host_rank *host_rank(const struct host_memory *memory, uint32_t index);

// Of the part of that number, counted from the job's first.
struct place_head *host_place(const struct host_memory *memory, uint64_t part);
struct host_call *host_call(const struct host_memory *memory, uint64_t part, uint32_t index);
uint8_t *host_exponents(const struct host_memory *memory, uint64_t part, uint32_t index);
uint8_t *host_values(const struct host_memory *memory, uint64_t part, uint32_t index);
uint8_t *host_agreed(const struct host_memory *memory, uint64_t part);
uint8_t *host_sums(const struct host_memory *memory, uint64_t part);

// Gives back the memory of values in all places: a rank's copies, or the leader's sums.
void host_memory_spare(const struct host_memory *memory);

#endif
