// SPDX-License-Identifier: Apache-2.0
// Rounding sizes up, to pages for example.
#ifndef P4REDUCE_ALIGN_H
#define P4REDUCE_ALIGN_H

#include <stddef.h>

// The smallest and the largest pages that processors have.
enum { LEAST_PAGE_BYTES = 4096, LARGEST_PAGE_BYTES = 65536 };

// Returns `size`, rounded up to a multiple of `unit`.
static inline size_t align_up(size_t size, size_t unit) {
    return (size + unit - 1) / unit * unit;
}

#endif
