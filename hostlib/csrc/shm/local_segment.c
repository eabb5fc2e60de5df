// SPDX-License-Identifier: Apache-2.0
#include "shm/local_segment.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>

enum {
    PAGE_BYTES = 4096,
    MOST_PIECE_BYTES = 64 << 10,
    LEAST_PIECE_BYTES = 16 << 10,
    CACHED_BYTES = 512 << 10,
    MOST_COPIES_BYTES = 2 << 20,
    COPIES_BYTES = 16 << 20, // of all ranks in a window
};

static size_t in_pages(size_t size) {
    return (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

// Parts of a window, in this order: head, contents, places, agreed exponents, exponents, sums, copies.
static size_t contents_at(void) {
    return in_pages(sizeof(struct window_head));
}

static size_t places_at(const struct segment *segment) {
    return contents_at() + in_pages((size_t)segment->ranks * MOST_PIECES);
}

static size_t agreed_at(const struct segment *segment) {
    return places_at(segment) + in_pages((size_t)segment->ranks * MOST_PIECES * sizeof(uint32_t));
}

static size_t exponents_at(const struct segment *segment) {
    return agreed_at(segment) + (size_t)segment->room_pieces * MOST_PIECE_BLOCKS;
}

static size_t sums_at(const struct segment *segment) {
    return exponents_at(segment) + (size_t)segment->ranks * segment->room_pieces * MOST_PIECE_BLOCKS;
}

static size_t copies_at(const struct segment *segment) {
    return sums_at(segment) + segment->room_pieces * segment->piece_bytes;
}

static size_t window_size(const struct segment *segment) {
    return copies_at(segment) + segment->ranks * segment->copies_bytes;
}

static size_t windows_at(const struct segment *segment) {
    return in_pages(sizeof(struct segment_head)) + in_pages(segment->ranks * sizeof(struct rank_record));
}

void segment_lay_out(struct segment *segment, uint32_t rank, uint32_t ranks) {
    *segment = (struct segment){.rank = rank, .ranks = ranks, .piece_bytes = MOST_PIECE_BYTES};
    // All ranks' values in a piece shall fit into a processor's cache.
    while (segment->piece_bytes > LEAST_PIECE_BYTES && ranks * segment->piece_bytes > CACHED_BYTES)
        segment->piece_bytes /= 2;
    segment->copies_bytes = MOST_COPIES_BYTES;
    while (segment->copies_bytes > segment->piece_bytes && ranks * segment->copies_bytes > COPIES_BYTES)
        segment->copies_bytes /= 2;
    segment->room_pieces = (unsigned)(WINDOW_BYTES / segment->piece_bytes);
    segment->copied_pieces = (unsigned)(segment->copies_bytes / segment->piece_bytes);
    segment_can_read(segment, false);
    segment->size = windows_at(segment) + WINDOWS * window_size(segment);
}

void segment_can_read(struct segment *segment, bool readable) {
    segment->readable = readable;
    segment->pieces = readable ? segment->room_pieces : segment->copied_pieces;
}

struct segment_head *segment_head(const struct segment *segment) {
    return (struct segment_head *)segment->base;
}

struct rank_record *segment_rank(const struct segment *segment, uint32_t rank) {
    return (struct rank_record *)(segment->base + in_pages(sizeof(struct segment_head))) + rank;
}

static uint8_t *window_at(const struct segment *segment, uint64_t window) {
    return segment->base + windows_at(segment) + window % WINDOWS * window_size(segment);
}

struct window_head *segment_window(const struct segment *segment, uint64_t window) {
    return (struct window_head *)window_at(segment, window);
}

uint8_t *segment_contents(const struct segment *segment, uint64_t window, uint32_t rank) {
    return window_at(segment, window) + contents_at() + (size_t)rank * MOST_PIECES;
}

uint32_t *segment_places(const struct segment *segment, uint64_t window, uint32_t rank) {
    return (uint32_t *)(window_at(segment, window) + places_at(segment)) + (size_t)rank * MOST_PIECES;
}

uint8_t *segment_agreed(const struct segment *segment, uint64_t window, unsigned piece) {
    return window_at(segment, window) + agreed_at(segment) + (size_t)piece * MOST_PIECE_BLOCKS;
}

uint8_t *segment_exponents(const struct segment *segment, uint64_t window, uint32_t rank, unsigned piece) {
    return window_at(segment, window) + exponents_at(segment) +
           ((size_t)rank * segment->room_pieces + piece) * MOST_PIECE_BLOCKS;
}

uint8_t *segment_sums(const struct segment *segment, uint64_t window, unsigned piece) {
    return window_at(segment, window) + sums_at(segment) + piece * segment->piece_bytes;
}

uint8_t *segment_copies(const struct segment *segment, uint64_t window, uint32_t rank) {
    return window_at(segment, window) + copies_at(segment) + rank * segment->copies_bytes;
}

int segment_read(const struct segment *segment, uint32_t rank, uint64_t from, void *to, size_t size) {
    const pid_t pid = segment_rank(segment, rank)->pid;
    while (size > 0) {
        const struct iovec here = {to, size}, there = {(void *)(uintptr_t)from, size};
        const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0)
            return got < 0 ? errno : EFAULT;
        to = (uint8_t *)to + got;
        from += (uint64_t)got;
        size -= (size_t)got;
    }
    return 0;
}

void segment_close(struct segment *segment) {
    if (segment->base != NULL)
        munmap(segment->base, segment->size);
    segment->base = NULL;
}
