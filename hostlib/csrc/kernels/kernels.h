// SPDX-License-Identifier: Apache-2.0
// The loops over a tensor's values: one set for each kind of processor. All sets compute the same bits.
#ifndef P4REDUCE_KERNELS_H
#define P4REDUCE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK_ZERO 0         // exponent of a block whose values are all +0 or -0
#define BLOCK_NOT_FINITE 255 // exponent of a float32 block with a NaN or an infinity, and of any non-zero int32 block
#define SCAN_AHEAD 4096      // bytes by which scans prefetch ahead: a page of the least size
#define NAN_BITS UINT32_C(0x7FC00000)

// Conversions of one type of 16-bit floats.
struct half {
    // Converts to float32.
    void (*widen)(const uint16_t *halves, size_t count, float *values);
    // Converts from float32, rounded to nearest, ties to even. NaNs become quiet, and keep the bits that there is room
    // for.
    void (*narrow)(const float *values, size_t count, uint16_t *halves);
};

// A set of loops. They may be called from any thread, and expect the floating-point environment that programs start
// with.
struct kernels {
    const char *name;
    // Finds the largest biased exponent in each block of float32: BLOCK_ZERO for zeros, 1 also for subnormals. Returns
    // whether a block of zeros holds a -0.
    bool (*scan_float32)(const void *values, size_t blocks, size_t block_size, uint8_t *exponents);
    // Finds BLOCK_NOT_FINITE for each non-zero block of int32, and BLOCK_ZERO for the others.
    void (*scan_int32)(const void *values, size_t blocks, size_t block_size, uint8_t *exponents);
    // Sets wire = big-endian int32 of rint(value * 2^up), ties to even. All magnitudes are below 2^(30 - up).
    void (*quantise)(const void *values, size_t count, int up, uint8_t *wire);
    // Sets value = float32(int32 * 2^-up), rounded once.
    void (*dequantise)(const uint8_t *wire, size_t count, int up, void *values);
    // Does the same with non-temporal stores, which bypass the caches: lines that are written as a whole are not read
    // first. It is for values that the caches do not hold. NULL if the set has none.
    void (*dequantise_to_memory)(const uint8_t *wire, size_t count, int up, void *values);
    // Orders non-temporal stores before later stores. A release store alone does not order them. So call it before
    // other threads or processes are told that the values are there.
    void (*settle)(void);
    // Quantises to words of two or four integers, the first lowest, each clipped to +-limit. The last word is padded
    // with zeros. For int8, `up` has 23 more bits, which stochastic rounding removes. `noise`: noise_start of the first
    // value.
    void (*quantise_16)(const void *values, size_t count, int up, int limit, uint8_t *wire);
    void (*quantise_8)(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire);
    // Converts words of two or four integers back.
    void (*dequantise_16)(const uint8_t *wire, size_t count, int up, void *values);
    void (*dequantise_8)(const uint8_t *wire, size_t count, int up, void *values);
    // Converts between big-endian int32 and the host's.
    void (*swap)(const void *from, size_t count, void *to);
    // Adds words of the wire to sums of words, modulo 2^32, as switches do.
    void (*add)(const uint8_t *wire, size_t count, uint8_t *sums);
    // Quantises, adds and dequantises in one. It requires in_float32(up). It adds the values number `begin` to `end` of
    // all ranks, whose arrays are `from`, and writes the sums to the `target_count` arrays in `to`.
    void (*sum)(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                size_t target_count);
    struct half float16, bfloat16;
    // Returns the largest of the words of either type, rotated left by one bit. So their order is that of magnitudes,
    // and the sign is the last bit: the result 1 means that there is a -0 among zeros.
    uint16_t (*largest_half)(const uint16_t *halves, size_t count);
};

extern const struct kernels kernels_portable;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
extern const struct kernels kernels_neon;
#endif

// Returns the fastest set that this processor can run, or the one that the environment variable P4REDUCE_SIMD names.
const struct kernels *kernels_chosen(void);
// Returns the set of that name, or NULL if this processor or build does not have it. The name NULL means the chosen
// set.
const struct kernels *kernels_named(const char *name);

// Returns 2^power as a float32, for a power from -126 to 127. For other powers the result is arbitrary.
static inline float float_power(int power) {
    union {
        uint32_t bits;
        float value;
    } number = {.bits = (uint32_t)(power + 127) << 23};
    return number.value;
}

// Returns 2^power as a float64, for a power from -1022 to 1023.
static inline double double_power(int power) {
    union {
        uint64_t bits;
        double value;
    } number = {.bits = (uint64_t)(power + 1023) << 52};
    return number.value;
}

// Returns whether float32 can represent 2^up and 2^-up. Then a sum's product with 2^-up is not subnormal, and is exact:
// only the conversion of the sum rounds.
static inline bool in_float32(int up) {
    return up <= 126;
}

// Bias of packed words: it makes each integer of 16 or 8 bits non-negative, so that none borrows from the next one.
#define BIAS_16 UINT32_C(0x80008000)
#define BIAS_8 UINT32_C(0x80808080)

// Random integers from 0 to 2^23 - 1 for stochastic rounding. The one for the value number `index` is
// noise_bits(noise_start(seed, index)). For the following values, NOISE_STEP is added to the start each time. The hash
// is Chris Wellons' lowbias32 (https://nullprogram.com/blog/2018/07/31/), which is in the public domain.
#define NOISE_STEP UINT32_C(0x9E3779B9)
#define NOISE_FIRST UINT32_C(0x7FEB352D)
#define NOISE_SECOND UINT32_C(0x846CA68B)
#define NOISE_SHIFT 23 // random bits

static inline uint32_t noise_mixed(uint32_t x) {
    x = (x ^ x >> 16) * NOISE_FIRST;
    x = (x ^ x >> 15) * NOISE_SECOND;
    return x ^ x >> 16;
}

static inline uint32_t noise_start(uint32_t seed, uint64_t index) {
    return noise_mixed(seed) + (uint32_t)index * NOISE_STEP;
}

static inline uint32_t noise_bits(uint32_t noise) {
    return noise_mixed(noise) >> (32 - NOISE_SHIFT);
}

// Returns the exponent of a block from the bits of its largest magnitude.
static inline uint8_t exponent_of(uint32_t magnitude) {
    uint32_t exponent = magnitude >> 23;
    return (uint8_t)(magnitude != 0 && exponent == 0 ? 1 : exponent);
}

#endif
