// SPDX-License-Identifier: Apache-2.0
/*
 * The indices of a tensor's non-zero elements, which increase and are below a bound, and their compact code.
 * hostlib/p4reduce/tensors/indices.py describes the code, and does the same in Python.
 */
#ifndef P4REDUCE_INDICES_H
#define P4REDUCE_INDICES_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the indices of those of `count` words that have a bit of `mask`. `indices` has room for `count`. Returns how
 * many there are. mask: 0x7fffffff for float32, so that -0 counts as zero; all bits for int32. */
P4REDUCE_API uint64_t p4reduce_find_indices(const uint32_t *words, uint64_t count, uint32_t mask, int64_t *indices);

/* Writes the code of `count` numbers into `words`, which must be zero. low: the number of lower bits that are stored
 * unchanged; 64 for a bitmap. */
P4REDUCE_API void p4reduce_encode_indices(const int64_t *indices, uint64_t count, uint32_t low, uint32_t *words);

/* Decodes `count` numbers, at least one, from the code's first `bits` bits. Returns P4REDUCE_INVALID if that is no
 * valid code of so many numbers below `bound`; the contents of `indices` are then undefined. */
P4REDUCE_API p4reduce_status p4reduce_decode_indices(const uint32_t *words, uint64_t bits, uint64_t count, uint32_t low,
                                                     uint64_t bound, int64_t *indices);

/* Writes the union of `lists` into `indices`. Returns how many numbers it has. bitmap: working memory of zeros, at
 * least `bound` bits in whole words of 64. bound: above all numbers. */
P4REDUCE_API uint64_t p4reduce_union_indices(const int64_t *const *lists, const uint64_t *counts, uint32_t list_count,
                                             uint64_t *bitmap, uint64_t bound, int64_t *indices);

/* Finds the index in `all` of each of `count` numbers. `all` contains all of them, and both increase. */
P4REDUCE_API void p4reduce_locate_indices(const int64_t *all, const int64_t *indices, uint64_t count, int64_t *where);

#ifdef __cplusplus
}
#endif

#endif
