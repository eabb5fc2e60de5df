// SPDX-License-Identifier: Apache-2.0
// The area of a segment: buffers, in which parts of tensors take turns, each with room for what all ranks say of a part.
// Parts are counted from the job's first. What nobody writes to takes no memory.
#ifndef P4REDUCE_BUFFERS_H
#define P4REDUCE_BUFFERS_H

#include "base/align.h"
#include "shm/segment.h"

struct buffers {
    uint8_t *base;
    unsigned count, ranks, copiers; // copiers: ranks that have copies of values there. count: a power of two
    // How large a buffer's parts are, in this order; those of exponents, one for all ranks together and one for each,
    // and those of copies, one for each copier, are all alike. They begin at pages, so that ranks can give memory back.
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

// What is in the buffer of the part of that number.

static inline void *buffers_head(const struct buffers *buffers, uint64_t part) {
    return buffers->base + (part & (buffers->count - 1)) *
                               (buffers_copies_at(buffers) + buffers->copiers * buffers->copies_bytes);
}

// The largest exponents of blocks over all ranks, and the sums.
static inline uint8_t *buffers_agreed(const struct buffers *buffers, uint64_t part) {
    return (uint8_t *)buffers_head(buffers, part) + buffers->head_bytes;
}

static inline uint8_t *buffers_sums(const struct buffers *buffers, uint64_t part) {
    return (uint8_t *)buffers_head(buffers, part) + buffers_sums_at(buffers);
}

// A rank's exponents; a copier's copies.
static inline uint8_t *buffers_exponents(const struct buffers *buffers, uint64_t part, uint32_t rank) {
    return buffers_agreed(buffers, part) + (1 + rank) * buffers->exponents_bytes;
}

static inline uint8_t *buffers_copies(const struct buffers *buffers, uint64_t part, uint32_t copier) {
    return (uint8_t *)buffers_head(buffers, part) + buffers_copies_at(buffers) + copier * buffers->copies_bytes;
}

#endif
