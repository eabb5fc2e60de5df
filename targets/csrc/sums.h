// SPDX-License-Identifier: Apache-2.0
// Adding the values of a packet to the sums of a slot, both big-endian int32 that wrap.
#ifndef NATIVE_SUMS_H
#define NATIVE_SUMS_H

#include <stddef.h>
#include <stdint.h>

// `size` is a multiple of 128, `sums` is aligned to 64.
typedef void add_values_fn(uint8_t *sums, const uint8_t *values, size_t size);

// The best that this processor runs, or the one that the environment's P4REDUCE_SIMD names.
add_values_fn *sums_choose(void);

// By name: portable, avx2, avx512; NULL if this processor does not run it.
add_values_fn *sums_named(const char *name);

#endif
