// SPDX-License-Identifier: Apache-2.0
// The area of a segment: buffers that parts of tensors use in turn. Each has room for the data of all ranks about one
// part. Parts are numbered from the job's first. Pages that no rank writes to take no memory.
#ifndef P4REDUCE_BUFFERS_H
#define P4REDUCE_BUFFERS_H

#include "base/align.h"

#include <stdint.h>

// The layout of the buffers of one area.
struct buffers {
    uint8_t *base;
    unsigned count, ranks, copiers; // count: a power of two. copiers: ranks that copy their values into a buffer
    // The sizes of a buffer's sections, in this order: the head; the agreed exponents, and those of each rank; the
    // sums; the copies of each copier. Sections begin at pages, so that ranks can give memory back to the kernel.
    size_t head_bytes, exponents_bytes, sums_bytes, copies_bytes;
};

static inline size_t buffers_sums_at(const struct buffers *buffers) {
    return buffers->head_bytes + (1 + buffers->ranks) * buffers->exponents_bytes;
}

static inline size_t buffers_copies_at(const struct buffers *buffers) {
    return buffers_sums_at(buffers) + buffers->sums_bytes;
}

// Rounds the sizes up. Returns how many bytes all buffers take.
static inline size_t buffers_lay_out(struct buffers *buffers) {
    size_t *const sizes[] = {&buffers->head_bytes, &buffers->exponents_bytes, &buffers->sums_bytes,
                             &buffers->copies_bytes};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *sizes[i] = align_up(*sizes[i], LARGEST_PAGE_BYTES);
    return buffers->count * (buffers_copies_at(buffers) + buffers->copiers * buffers->copies_bytes);
}

// The sections of the buffer of part number `part`.

static inline void *buffers_head(const struct buffers *buffers, uint64_t part) {
    return buffers->base +
           (part & (buffers->count - 1)) * (buffers_copies_at(buffers) + buffers->copiers * buffers->copies_bytes);
}

// Returns the largest exponents of blocks over all ranks; below, the sums.
static inline uint8_t *buffers_agreed(const struct buffers *buffers, uint64_t part) {
    return (uint8_t *)buffers_head(buffers, part) + buffers->head_bytes;
}

static inline uint8_t *buffers_sums(const struct buffers *buffers, uint64_t part) {
    return (uint8_t *)buffers_head(buffers, part) + buffers_sums_at(buffers);
}

// Returns a rank's exponents; below, a copier's copies.
static inline uint8_t *buffers_exponents(const struct buffers *buffers, uint64_t part, uint32_t rank) {
    return buffers_agreed(buffers, part) + (1 + rank) * buffers->exponents_bytes;
}

static inline uint8_t *buffers_copies(const struct buffers *buffers, uint64_t part, uint32_t copier) {
    return (uint8_t *)buffers_head(buffers, part) + buffers_copies_at(buffers) + copier * buffers->copies_bytes;
}

#endif
