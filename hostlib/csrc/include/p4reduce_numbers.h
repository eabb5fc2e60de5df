// SPDX-License-Identifier: Apache-2.0
/*
 * The loops over values: they find zero blocks and the exponents of the others, and convert values to the int32 that
 * switches add, and back. docs/protocol.md, section "Numbers", has the formulas. All instruction sets give the same
 * bits.
 *
 * `simd` is the name of an instruction set, as p4reduce_simd returns it; NULL stands for the one in use. Functions
 * return P4REDUCE_INVALID for one that this processor does not have. They expect the floating-point environment that
 * programs start with: rounding to nearest, subnormals kept. They may be called from any thread.
 */
#ifndef P4REDUCE_NUMBERS_H
#define P4REDUCE_NUMBERS_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the largest biased exponent in each block of a flat array. `exponents` has ceil(count / block_size) bytes. A
 * block of zeros has 0, one that has only subnormals has 1. A block with a NaN or an infinity has 255, and so has any
 * non-zero block of int32. */
P4REDUCE_API p4reduce_status p4reduce_scan(const char *simd, uint32_t type, const void *values, uint64_t count,
                                           uint32_t block_size, uint8_t *exponents);

/* Quantises one block's values to big-endian words, with the agreed exponent `exponent`, in a job of `world_size`
 * ranks. `wire` is a p4reduce_wire. On INT8, rounding is stochastic: `seed` and each value's index in the tensor
 * determine its noise. The first value has index `first`. */
P4REDUCE_API p4reduce_status p4reduce_quantise(const char *simd, uint32_t type, uint32_t wire, const void *values,
                                               uint64_t count, uint32_t world_size, uint32_t exponent, uint32_t seed,
                                               uint64_t first, uint8_t *words);

/* Converts the big-endian sums of a RESULT to the `count` values of one block. */
P4REDUCE_API p4reduce_status p4reduce_dequantise(const char *simd, uint32_t type, uint32_t wire, const uint8_t *words,
                                                 uint64_t count, uint32_t world_size, uint32_t exponent, void *values);

/* Converts 16-bit floats, FLOAT16 or BFLOAT16, to float32; and float32 to them, rounded to nearest, ties to even. NaNs
 * become quiet, and keep as much of their payload as there is room for. */
P4REDUCE_API p4reduce_status p4reduce_widen(const char *simd, uint32_t type, const void *values, uint64_t count,
                                            void *wide);
P4REDUCE_API p4reduce_status p4reduce_narrow(const char *simd, uint32_t type, const void *wide, uint64_t count,
                                             void *values);

/* Returns the fingerprint of the operation that is number `counter` in its job. The fingerprint's lower 8 bits are 0.
 * `dtype` and `reduce_op` have at most 31 characters. */
P4REDUCE_API uint32_t p4reduce_fingerprint(uint32_t counter, const char *dtype, const char *reduce_op, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
