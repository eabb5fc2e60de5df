// SPDX-License-Identifier: Apache-2.0
// Compares this processor's kernels with the portable ones, bit for bit, on processors on which Python's tests do not
// run, for example 64-bit ARM in an emulator.
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 1000, OFFSETS = 7 };

static uint64_t state = 1;

static uint32_t next_random(void) { // splitmix64
    uint64_t z = (state += 0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (uint32_t)((z ^ z >> 31) >> 16);
}

static void check(bool equal, const char *what, int first, size_t second) {
    if (!equal) {
        printf("%s differs: %d, %zu\n", what, first, second);
        exit(1);
    }
}

static void compare_quantise(const struct kernels *kernels, int headroom) {
    static uint32_t values[VALUES];
    static uint8_t wire[4 * VALUES + OFFSETS], expected[4 * VALUES + OFFSETS];
    for (int exponent = 1; exponent < 255; exponent++) {
        const int up = 30 - headroom - (exponent - 126);
        const uint32_t top = (uint32_t)exponent << 23 | 0x7FFFFF;
        for (size_t i = 0; i < VALUES; i++) {
            // Any magnitude, or one that is not much smaller than the largest, with few digits so that ties come up.
            uint32_t magnitude =
                i % 2 ? next_random() % (top + 1) : top - next_random() % (top < 0x10000000 ? top : 0x10000000);
            if (i % 3 == 0)
                magnitude &= ~UINT32_C(0) << next_random() % 24;
            values[i] = magnitude | next_random() << 31;
        }
        for (size_t count = VALUES - 20; count <= VALUES; count += 5) {
            const size_t offset = count % OFFSETS;
            kernels->quantise(values, count, up, wire + offset);
            kernels_portable.quantise(values, count, up, expected + offset);
            check(memcmp(wire + offset, expected + offset, 4 * count) == 0, "quantise", exponent, count);
        }
    }
}

static void compare_dequantise(const struct kernels *kernels, int headroom) {
    static uint8_t wire[4 * VALUES + OFFSETS];
    static uint32_t values[VALUES], expected[VALUES];
    for (int exponent = 0; exponent < 255; exponent++) {
        const int up = 30 - headroom - (exponent - 126);
        for (size_t i = 0; i < sizeof wire; i++)
            wire[i] = (uint8_t)(next_random() & (i % 8 < 2 ? 0 : 0xFF));
        for (size_t count = VALUES - 20; count <= VALUES; count += 5) {
            const size_t offset = count % OFFSETS;
            kernels->dequantise(wire + offset, count, up, values);
            kernels_portable.dequantise(wire + offset, count, up, expected);
            check(memcmp(values, expected, 4 * count) == 0, "dequantise", exponent, count);
            if (kernels->dequantise_to_memory != NULL) {
                uint32_t *shifted = values + count % 17; // so that it begins anywhere in a line
                kernels->dequantise_to_memory(wire + offset, count - 20, up, shifted);
                check(memcmp(shifted, expected, 4 * (count - 20)) == 0, "dequantise_to_memory", exponent, count);
            }
            kernels->swap(wire + offset, count, values);
            kernels_portable.swap(wire + offset, count, expected);
            check(memcmp(values, expected, 4 * count) == 0, "swap", exponent, count);
            kernels->add(wire + offset, count, (uint8_t *)values);
            kernels_portable.add(wire + offset, count, (uint8_t *)expected);
            check(memcmp(values, expected, 4 * count) == 0, "add", exponent, count);
        }
    }
}

// Compares `sum` with the three separate steps, for as many ranks as there is headroom for.
static void compare_sum(const struct kernels *kernels, int headroom) {
    enum { MOST_RANKS = 5 };
    static float values[MOST_RANKS][VALUES], sums[2][VALUES];
    static uint8_t wire[4 * VALUES], words[4 * VALUES];
    static float expected[VALUES];
    const size_t ranks = headroom < 2 ? (size_t)headroom + 1 : MOST_RANKS;
    const float *from[MOST_RANKS];
    float *const to[2] = {sums[0], sums[1]};
    for (int exponent = 1; kernels->sum != NULL && exponent < 255; exponent++) {
        const int up = 30 - headroom - (exponent - 126);
        const size_t begin = next_random() % 70, end = VALUES - next_random() % 70;
        if (!in_float32(up))
            continue;
        for (size_t rank = 0; rank < ranks; rank++) {
            from[rank] = values[rank];
            for (size_t i = 0; i < VALUES; i++) {
                const uint32_t bits = next_random() % (((uint32_t)exponent << 23 | 0x7FFFFF) + 1) | next_random() << 31;
                memcpy(&values[rank][i], &bits, 4);
            }
            kernels_portable.quantise(values[rank], VALUES, up, rank == 0 ? words : wire);
            if (rank > 0)
                kernels_portable.add(wire, VALUES, words);
        }
        kernels_portable.dequantise(words, VALUES, up, expected);
        memset(sums, 0xFF, sizeof sums);
        kernels->sum(from, ranks, begin, end, up, to, 2);
        for (int target = 0; target < 2; target++)
            check(memcmp(sums[target] + begin, expected + begin, 4 * (end - begin)) == 0, "sum", exponent, begin);
        check(begin == 0 || memcmp(&sums[1][begin - 1], "\xFF\xFF\xFF\xFF", 4) == 0, "before a sum", exponent, begin);
        check(end == VALUES || memcmp(&sums[0][end], "\xFF\xFF\xFF\xFF", 4) == 0, "behind a sum", exponent, end);
    }
}

static void compare_scan(const struct kernels *kernels) {
    static uint32_t values[40 * 260];
    static uint8_t exponents[40], expected[40];
    for (size_t block_size = 1; block_size < 260; block_size++)
        for (int round = 0; round < 20; round++) {
            for (size_t i = 0; i < 40 * block_size; i++) {
                const uint32_t kind = next_random() % (round < 10 ? 4 * (uint32_t)block_size : 4);
                values[i] = kind == 0   ? next_random()
                            : kind == 1 ? UINT32_C(1) << 31
                            : kind == 2 ? next_random() & 1
                                        : 0;
                if (round % 10 == 0)
                    values[i] &= UINT32_C(1) << 31;
            }
            const size_t blocks = 20 + next_random() % 20;
            const bool found = kernels->scan_float32(values, blocks, block_size, exponents);
            check(found == kernels_portable.scan_float32(values, blocks, block_size, expected), "-0", round,
                  block_size);
            check(memcmp(exponents, expected, blocks) == 0, "scan of float32", round, block_size);
            kernels->scan_int32(values, blocks, block_size, exponents);
            kernels_portable.scan_int32(values, blocks, block_size, expected);
            check(memcmp(exponents, expected, blocks) == 0, "scan of int32", round, block_size);
        }
}

static void compare_half(const struct half *half, const struct half *portable, const char *what) {
    static uint16_t halves[1 << 16], expected_halves[1 << 16];
    static float values[1 << 16], expected[1 << 16];
    for (size_t i = 0; i < 1 << 16; i++)
        halves[i] = (uint16_t)i;
    half->widen(halves, 1 << 16, values);
    portable->widen(halves, 1 << 16, expected);
    check(memcmp(values, expected, sizeof values) == 0, what, 1, 0);
    for (int round = 0; round < 100; round++) {
        uint32_t bits[1 << 10];
        for (size_t i = 0; i < 1 << 10; i++) {
            const uint32_t near = next_random() % 3 - 1; // ties, and the values next to them
            memcpy(bits + i, expected + next_random() % (1 << 16), 4);
            bits[i] = round % 2 ? next_random() : bits[i] + (next_random() % 2 << (round % 4 ? 12 : 15)) + near;
        }
        const size_t count = (1 << 10) - (size_t)round;
        half->narrow((const float *)memcpy(values, bits, sizeof bits), count, halves);
        portable->narrow(values, count, expected_halves);
        check(memcmp(halves, expected_halves, 2 * count) == 0, what, 2, count);
    }
}

static void compare_largest(const struct kernels *kernels) {
    uint16_t halves[100];
    for (size_t count = 0; count <= 100; count++)
        for (int round = 0; round < 100; round++) {
            for (size_t i = 0; i < count; i++)
                halves[i] = (uint16_t)(round % 10 ? next_random() >> next_random() % 32 : next_random() << 15);
            const uint16_t largest = kernels->largest_half(halves, count);
            check(largest == kernels_portable.largest_half(halves, count), "largest", round, count);
        }
}

int main(int count, char **arguments) {
    const struct kernels *kernels = count > 1 ? kernels_named(arguments[1]) : kernels_chosen();
    if (kernels == NULL) {
        printf("this processor has no %s\n", arguments[1]);
        return 1;
    }
    for (int headroom = 0; headroom <= 12; headroom += headroom < 5 ? 1 : 7) { // of up to 32 ranks, and of 4096
        compare_quantise(kernels, headroom);
        compare_dequantise(kernels, headroom);
        compare_sum(kernels, headroom);
    }
    compare_scan(kernels);
    compare_half(&kernels->float16, &kernels_portable.float16, "float16");
    compare_half(&kernels->bfloat16, &kernels_portable.bfloat16, "bfloat16");
    compare_largest(kernels);
    printf("%s: as portable\n", kernels->name);
    return 0;
}
