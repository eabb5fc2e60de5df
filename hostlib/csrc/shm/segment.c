// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include "base/align.h"
#include "base/clock.h"
#include "base/membership.h"
#include "shm/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READS_ALL = 1, MAPS_ALL = 2 };

void segment_members(struct segment *segment, const p4reduce_membership *membership) {
    *segment = (struct segment){.base = NULL};
    for (uint32_t rank = 0; rank < membership->world_size; rank++) {
        segment->connections[rank] = -1;
        if (membership->sharing && !membership_beside(membership, rank, membership->rank))
            continue;
        if (rank == membership->rank)
            segment->index = segment->count;
        segment->ranks[segment->count++] = (uint16_t)rank;
    }
}

static size_t records_at(void) {
    return align_up(sizeof(struct segment_head), LINE_BYTES);
}

static size_t area_at(const struct segment *segment) {
    return align_up(records_at() + segment->count * sizeof(struct rank_record), LARGEST_PAGE_BYTES);
}

struct segment_head *segment_head(const struct segment *segment) {
    return (struct segment_head *)segment->base;
}

struct rank_record *segment_rank(const struct segment *segment, uint32_t index) {
    return (struct rank_record *)(segment->base + records_at()) + index;
}

struct call *segment_call(const struct segment *segment, uint32_t index, uint64_t number) {
    return &segment_rank(segment, index)->calls[number % CALLS];
}

uint8_t *segment_area(const struct segment *segment) {
    return segment->base + area_at(segment);
}

bool segment_read(const struct segment *segment, uint32_t index, uint64_t from, void *to, size_t size) {
    const pid_t pid = segment_rank(segment, index)->pid;
    ssize_t got = 0;
    for (size_t at = 0; at < size; at += (size_t)got) {
        const struct iovec here = {(uint8_t *)to + at, size - at}, there = {(void *)(uintptr_t)(from + at), size - at};
        got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            return false;
    }
    return true;
}

// Probing.

static bool reads_all(const struct segment *segment) {
    for (uint32_t index = 0; index < segment->count; index++) {
        const struct rank_record *other = segment_rank(segment, index);
        uint64_t found = 0;
        if (!segment_read(segment, index, other->probed_at, &found, sizeof found) || found != other->probe)
            return false;
    }
    return true;
}

// Lets other ranks read this process's memory. The security module Yama otherwise allows only ancestors to do so.
static void allow_reading(void) {
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
    if (file == NULL)
        return;
    if (fgetc(file) == '1')
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    fclose(file);
}

// Returns whether this rank can open descriptors of all others. The test is their descriptor of the segment, which is
// `memory` here.
static bool maps_all(const struct segment *segment, int memory) {
    struct stat status;
    bool all = fstat(memory, &status) == 0;
    for (uint32_t index = 0; all && index < segment->count; index++) {
        const struct rank_record *other = segment_rank(segment, index);
        all = region_exists(other->pid, other->file, status.st_ino);
    }
    return all;
}

static uint32_t count_processors(const struct segment *segment) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (uint32_t index = 0; index < segment->count; index++)
        CPU_OR(&all, &all, &segment_rank(segment, index)->processors);
    return (uint32_t)CPU_COUNT(&all);
}

// Waits until all ranks are there, and finds out with them whether they can read and map each other's memory.
static bool meet(struct segment *segment, const struct rendezvous *rendezvous, int memory, bool probe, bool copies,
                 p4reduce_error *error) {
    const uint64_t number = (uint64_t)(clock_now() * 1e9) ^ (uint64_t)segment->index << 56;
    // Not static: forked siblings would have the same address and contents.
    uint64_t *probe_word = malloc(sizeof *probe_word);
    if (probe_word == NULL)
        return rendezvous_refused(error, "memory");
    *probe_word = number;
    struct rank_record *own = segment_rank(segment, segment->index);
    own->pid = getpid();
    own->probe = number;
    own->probed_at = (uint64_t)(uintptr_t)probe_word;
    own->file = memory;
    sched_getaffinity(0, sizeof own->processors, &own->processors);
    if (probe && !copies)
        allow_reading();
    uint8_t flags = 0;
    bool all = rendezvous_agree(rendezvous, &flags, error);
    if (all && probe) {
        flags = (uint8_t)((!copies && reads_all(segment) ? READS_ALL : 0) | (maps_all(segment, memory) ? MAPS_ALL : 0));
        all = rendezvous_agree(rendezvous, &flags, error);
    }
    segment->processors = all ? count_processors(segment) : 0;
    segment->readable = flags & READS_ALL;
    segment->mappable = flags & MAPS_ALL;
    free(probe_word);
    return all;
}

bool segment_open(struct segment *segment, size_t area_bytes, const p4reduce_local_options *options, bool probe,
                  p4reduce_error *error) {
    segment->bytes = area_at(segment) + area_bytes;
    const struct rendezvous rendezvous = {
        .name = options->rendezvous,
        .timeout = options->timeout,
        .index = segment->index,
        .count = segment->count,
        .ranks = segment->ranks,
        .layout = LAYOUT,
        .bytes = segment->bytes,
        .connections = segment->connections,
    };
    const int memory = rendezvous_join(&rendezvous, error);
    if (memory < 0)
        return false;
    void *base = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory, 0);
    bool well = base != MAP_FAILED;
    if (well) {
        segment->base = base;
        well = meet(segment, &rendezvous, memory, probe, options->copies, error);
    } else {
        rendezvous_refused(error, "memory");
    }
    close(memory);
    if (!well) {
        rendezvous_leave(&rendezvous);
        segment_close(segment);
    }
    return well;
}

void segment_close(struct segment *segment) {
    if (segment->base != NULL)
        munmap(segment->base, segment->bytes);
    segment->base = NULL;
}
