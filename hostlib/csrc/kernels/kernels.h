// SPDX-License-Identifier: Apache-2.0
// The loops over a tensor's values, one set for each kind of processor; all of them give the same bits.
#ifndef P4REDUCE_KERNELS_H
#define P4REDUCE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK_ZERO 0         // as an exponent: all values of the block are +0 or -0
#define BLOCK_NOT_FINITE 255 // of float32: a value is NaN or infinite; of int32: any block that is not zero
#define SCAN_AHEAD 4096 // bytes: what is asked of memory while so much before it is scanned, a page of the least size
#define NAN_BITS UINT32_C(0x7FC00000)

// One of the types of 16-bit floats.
struct half {
    // As float32.
    void (*widen)(const uint16_t *halves, size_t count, float *values);
    // Of float32, rounded to nearest, ties to even. NaNs become quiet, and keep the bits that there is room for.
    void (*narrow)(const float *values, size_t count, uint16_t *halves);
};

struct kernels {
    const char *name;
    // The largest biased exponent in each block of float32: BLOCK_ZERO for zeros, 1 also for subnormals. Returns
    // whether a block of zeros holds a -0.
    bool (*scan_float32)(const void *values, size_t blocks, size_t block_size, uint8_t *exponents);
    // BLOCK_NOT_FINITE for each block of int32 that is not zero, else BLOCK_ZERO.
    void (*scan_int32)(const void *values, size_t blocks, size_t block_size, uint8_t *exponents);
    // wire = big-endian int32 of rint(value * 2^up), ties to even; the magnitudes of all values are below 2^(30 - up).
    void (*quantise)(const void *values, size_t count, int up, uint8_t *wire);
    // value = float32(int32 * 2^-up), rounded once.
    void (*dequantise)(const uint8_t *wire, size_t count, int up, void *values);
    // The same, past the caches, for values that they do not hold, and need not: lines that are written as a whole are
    // not read first. NULL where there is none.
    void (*dequantise_to_memory)(const uint8_t *wire, size_t count, int up, void *values);
    // Orders what was written so before what is written next: call it before others are told.
    void (*settle)(void);
    // The same to words of two and of four integers, the first lowest, each within +-limit; the last word is filled up
    // with zeros. int8: what has 23 bits more than the word takes, and is rounded up or down by chance: `noise` is of
    // the first value.
    void (*quantise_16)(const void *values, size_t count, int up, int limit, uint8_t *wire);
    void (*quantise_8)(const void *values, size_t count, int up, int limit, uint32_t noise, uint8_t *wire);
    // And back.
    void (*dequantise_16)(const uint8_t *wire, size_t count, int up, void *values);
    void (*dequantise_8)(const uint8_t *wire, size_t count, int up, void *values);
    // Between big-endian int32 and the host's.
    void (*swap)(const void *from, size_t count, void *to);
    // Adds words of the wire to sums of them, as switches do: modulo 2^32.
    void (*add)(const uint8_t *wire, size_t count, uint8_t *sums);
    // quantise, add and dequantise in one, where in_float32(up): adds up the values from number `begin` to
    // `end` of all ranks, at `from`, and writes the sums at all `places`, `to`.
    void (*sum)(const float *const *from, size_t ranks, size_t begin, size_t end, int up, float *const *to,
                size_t places);
    struct half float16, bfloat16;
    // The largest of both types' words, turned by one bit so that their order is that of magnitudes and the sign comes
    // last: 1 is a -0 among zeros.
    uint16_t (*largest_half)(const uint16_t *halves, size_t count);
};

extern const struct kernels kernels_portable;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
extern const struct kernels kernels_neon;
#endif

// The fastest set that this processor runs, or the one that the environment's P4REDUCE_SIMD names.
const struct kernels *kernels_chosen(void);
// The set of that name; NULL where this processor or build has none. NULL stands for the chosen one.
const struct kernels *kernels_named(const char *name);

// 2^power as a float32: power from -126 to 127. Another power gives any float.
static inline float float_power(int power) {
    union {
        uint32_t bits;
        float value;
    } number = {.bits = (uint32_t)(power + 127) << 23};
    return number.value;
}

// 2^power as a float64: power from -1022 to 1023.
static inline double double_power(int power) {
    union {
        uint64_t bits;
        double value;
    } number = {.bits = (uint64_t)(power + 1023) << 52};
    return number.value;
}

// Whether float32 has 2^up and 2^-up. A sum's product with 2^-up then is not subnormal, and is exact: only the
// conversion of the sum rounds.
static inline bool in_float32(int up) {
    return up <= 126;
}

// What words of 16 or 8 bits a lane have more than the lanes beside each other, once each has the same added.
#define BIAS_16 UINT32_C(0x80008000)
#define BIAS_8 UINT32_C(0x80808080)

// A random integer from 0 to 2^23 - 1 is noise_bits(noise_start(seed, place)), and of the places after it
// noise_bits(start + NOISE_STEP), and so on. The mixing is Chris Wellons' lowbias32
// (https://nullprogram.com/blog/2018/07/31/), which is in the public domain.
#define NOISE_STEP UINT32_C(0x9E3779B9)
#define NOISE_FIRST UINT32_C(0x7FEB352D)
#define NOISE_SECOND UINT32_C(0x846CA68B)
#define NOISE_SHIFT 23 // of what is random

static inline uint32_t noise_mixed(uint32_t x) {
    x = (x ^ x >> 16) * NOISE_FIRST;
    x = (x ^ x >> 15) * NOISE_SECOND;
    return x ^ x >> 16;
}

static inline uint32_t noise_start(uint32_t seed, uint64_t place) {
    return noise_mixed(seed) + (uint32_t)place * NOISE_STEP;
}

static inline uint32_t noise_bits(uint32_t noise) {
    return noise_mixed(noise) >> (32 - NOISE_SHIFT);
}

// The exponent of a block from the bits of its largest magnitude.
static inline uint8_t exponent_of(uint32_t magnitude) {
    uint32_t exponent = magnitude >> 23;
    return (uint8_t)(magnitude != 0 && exponent == 0 ? 1 : exponent);
}

#endif
