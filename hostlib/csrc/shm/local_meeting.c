// SPDX-License-Identifier: Apache-2.0
// How ranks come to share a segment, and find out whether they can read each other's memory.
#include "shm/local_segment.h"

#include "shm/local_futex.h"
#include "shm/meeting.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { LAYOUT = 5 };
static const double SLICE_S = 0.1;

// Waits until all ranks have counted themselves in the word.
static bool meet(const struct segment *segment, _Atomic uint32_t *word, double deadline) {
    if (atomic_fetch_add(word, 1) + 1 == segment->ranks)
        futex_wake_all(word);
    for (uint32_t seen; (seen = atomic_load(word)) != segment->ranks;) {
        if (clock_now() >= deadline)
            return false;
        futex_wait(word, seen, SLICE_S);
    }
    return true;
}

static bool reads_all(const struct segment *segment) {
    for (uint32_t rank = 0; rank < segment->ranks; rank++) {
        const struct rank_record *other = segment_rank(segment, rank);
        uint64_t found = 0;
        if (segment_read(segment, rank, other->probed_at, &found, sizeof found) != 0 || found != other->probe)
            return false;
    }
    return true;
}

// Yama lets only ancestors read a process's memory, unless the process allows more.
static void allow_reading(void) {
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
    if (file == NULL)
        return;
    if (fgetc(file) == '1')
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    fclose(file);
}

// Whether this rank can open files of the others, of which each has the segment's: `memory` here.
static bool maps_all(const struct segment *segment, int memory) {
    struct stat status;
    bool all = fstat(memory, &status) == 0;
    for (uint32_t rank = 0; all && rank < segment->ranks; rank++) {
        const struct rank_record *other = segment_rank(segment, rank);
        all = region_is_there(other->pid, other->file, status.st_ino);
    }
    return all;
}

// Finds out whether all ranks can read each other's memory and map each other's regions, and agrees on it.
static bool probe(struct segment *segment, int memory, bool copies, double deadline) {
    struct segment_head *head = segment_head(segment);
    struct rank_record *own = segment_rank(segment, segment->rank);
    const uint64_t number = (uint64_t)(clock_now() * 1e9) ^ (uint64_t)segment->rank << 56;
    uint64_t *place = malloc(sizeof *place);
    if (place == NULL)
        return false;
    *place = number;
    *own = (struct rank_record){.pid = getpid(), .probe = number, .probed_at = (uint64_t)(uintptr_t)place,
                                .file = memory};
    if (!copies)
        allow_reading();
    bool all = meet(segment, &head->attached, deadline);
    if (all) {
        atomic_store(&own->reads_all, !copies && reads_all(segment));
        atomic_store(&own->maps_all, maps_all(segment, memory));
        all = meet(segment, &head->probed, deadline);
    }
    free(place);
    bool readable = all;
    segment->mappable = all;
    for (uint32_t rank = 0; rank < segment->ranks; rank++) {
        readable &= atomic_load(&segment_rank(segment, rank)->reads_all);
        segment->mappable &= atomic_load(&segment_rank(segment, rank)->maps_all);
    }
    segment_can_read(segment, readable);
    return all;
}

static bool share(struct segment *segment, const struct meeting *meeting, int memory, bool copies,
                  p4reduce_error *error) {
    void *base = mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (base == MAP_FAILED)
        return meeting_refused(error, "memory");
    segment->base = base;
    if (probe(segment, memory, copies, clock_now() + meeting->timeout))
        return true;
    bool here[MAX_RANKS];
    for (uint32_t rank = 0; rank < segment->ranks; rank++)
        here[rank] = segment_rank(segment, rank)->pid != 0;
    return meeting_absent(meeting, here, error);
}

bool segment_open(struct segment *segment, const p4reduce_membership *membership, const p4reduce_local_options *options,
                  p4reduce_error *error) {
    segment_lay_out(segment, membership->rank, membership->world_size);
    const struct meeting meeting = {
        .name = options->meeting,
        .timeout = options->timeout,
        .index = segment->rank,
        .count = segment->ranks,
        .layout = LAYOUT,
        .bytes = segment->size,
    };
    const int memory = meeting_hold(&meeting, NULL, error);
    if (memory < 0)
        return false;
    const bool well = share(segment, &meeting, memory, options->copies, error);
    close(memory);
    if (!well)
        segment_close(segment);
    return well;
}
