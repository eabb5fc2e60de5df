// SPDX-License-Identifier: Apache-2.0
// The smaller of two counts. For doubles, use fmin.
#ifndef P4REDUCE_MIN_H
#define P4REDUCE_MIN_H

#include <stdint.h>

static inline uint64_t min_of(uint64_t one, uint64_t other) {
    return one < other ? one : other;
}

#endif
