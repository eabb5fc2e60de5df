// SPDX-License-Identifier: Apache-2.0
/*
 * Which elements of a tensor are not zero: numbers that increase and are below a bound, and their code in few words.
 * hostlib/p4reduce/tensors/places.py says what the code is, and does the same in Python.
 */
#ifndef P4REDUCE_PLACES_H
#define P4REDUCE_PLACES_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of those of `count` words that have a bit of `mask`, to `places`, which has room for `count`. Returns how
 * many there are. mask: 0x7fffffff for float32, so that -0 is none; all bits for int32. */
P4REDUCE_API uint64_t p4reduce_find_places(const uint32_t *words, uint64_t count, uint32_t mask, int64_t *places);

/* The code of `count` numbers to `words`, which are zero. low: bits of a number that are written as they are; 64 for
 * a bitmap. */
P4REDUCE_API void p4reduce_encode_places(const int64_t *places, uint64_t count, uint32_t low, uint32_t *words);

/* The numbers, `count` of them, which is not 0, from the code's first `bits` bits. Returns P4REDUCE_INVALID for what is
 * no code of so many numbers below `bound`; then `places` may hold anything. */
P4REDUCE_API p4reduce_status p4reduce_decode_places(const uint32_t *words, uint64_t bits, uint64_t count, uint32_t low,
                                                    uint64_t bound, int64_t *places);

/* The numbers that any of `lists` has, to `places`. Returns how many there are. bitmap: zeros, of at least `bound` bits
 * in whole words of 64, above all numbers. */
P4REDUCE_API uint64_t p4reduce_union_places(const int64_t *const *lists, const uint64_t *counts, uint32_t list_count,
                                            uint64_t *bitmap, uint64_t bound, int64_t *places);

/* Where each of `count` numbers stands among `all`, which have all of these. */
P4REDUCE_API void p4reduce_locate_places(const int64_t *all, const int64_t *places, uint64_t count, int64_t *where);

#ifdef __cplusplus
}
#endif

#endif
