// SPDX-License-Identifier: Apache-2.0
/*
 * The loops over values: which blocks are zero, how large the others are, and how values become the int32 that switches
 * add. docs/protocol.md, section "Numbers", gives the formulas; all instruction sets give the same bits.
 *
 * `simd` names an instruction set, as p4reduce_simd does; NULL stands for the one in use. Functions with a result
 * return P4REDUCE_INVALID for one that this processor does not have. They expect the floating-point environment that
 * programs start with: rounding to nearest, subnormals kept.
 */
#ifndef P4REDUCE_NUMBERS_H
#define P4REDUCE_NUMBERS_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The largest biased exponent in each block of a flat array, to `exponents`, ceil(count / block_size) bytes: 0 for a
 * block of zeros, 1 also for one of subnormals only, 255 for one with a NaN or an infinity and for any block of int32
 * that is not zero. */
P4REDUCE_API p4reduce_status p4reduce_scan(const char *simd, uint32_t type, const void *values, uint64_t count,
                                           uint32_t block_size, uint8_t *exponents);

/* Big-endian words of one block's values, whose agreed exponent is `exponent`, in a job of `world_size` ranks, with as
 * many values a word as `wire` (p4reduce_wire) says. INT8 rounds by `seed` and the values' places, from `first` on. */
P4REDUCE_API p4reduce_status p4reduce_quantise(const char *simd, uint32_t type, uint32_t wire, const void *values,
                                               uint64_t count, uint32_t world_size, uint32_t exponent, uint32_t seed,
                                               uint64_t first, uint8_t *words);

/* The values of one block, `count` of them, from the big-endian sums of a RESULT. */
P4REDUCE_API p4reduce_status p4reduce_dequantise(const char *simd, uint32_t type, uint32_t wire, const uint8_t *words,
                                                 uint64_t count, uint32_t world_size, uint32_t exponent, void *values);

/* 16-bit floats, of FLOAT16 or BFLOAT16, as float32; and float32 rounded to them, to nearest, ties to even. NaNs become
 * quiet, and keep the bits that there is room for. */
P4REDUCE_API p4reduce_status p4reduce_widen(const char *simd, uint32_t type, const void *values, uint64_t count,
                                            void *wide);
P4REDUCE_API p4reduce_status p4reduce_narrow(const char *simd, uint32_t type, const void *wide, uint64_t count,
                                             void *values);

/* 32 bits, of which the lower 8 are 0, that identify a job's `counter`-th operation; names are at most 31 characters. */
P4REDUCE_API uint32_t p4reduce_fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
