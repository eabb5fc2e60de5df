// SPDX-License-Identifier: Apache-2.0
// Addition of a packet's values to a slot's sums. Both are big-endian int32, and sums wrap around.
#ifndef NATIVE_SUMS_H
#define NATIVE_SUMS_H

#include <stddef.h>
#include <stdint.h>

// `size` is a multiple of 128 bytes, `sums` is aligned to 64 bytes.
typedef void add_values_fn(uint8_t *sums, const uint8_t *values, size_t size);

// Returns the fastest function for this processor, or the one that the environment variable P4REDUCE_SIMD names.
add_values_fn *sums_choose(void);

// Returns a function by name (portable, avx2, avx512), or NULL if this processor does not support it.
add_values_fn *sums_named(const char *name);

#endif
