// SPDX-License-Identifier: Apache-2.0
// Runs a fuzzing target without libFuzzer: on files, for AFL or to repeat a finding, or on random inputs.
//
//   fuzz_receive FILE...
//   fuzz_receive --random RUNS [SEED]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST_INPUT = 4096 };

static uint64_t next_random(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static void run_random(unsigned long runs, uint64_t seed) {
    for (unsigned long run = 0; run < runs; run++) {
        uint8_t input[LARGEST_INPUT];
        uint64_t state = seed + run;
        const size_t size = next_random(&state) % sizeof input;
        for (size_t i = 0; i < size; i++)
            input[i] = (uint8_t)next_random(&state);
        uint8_t *exact = malloc(size + (size == 0));
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
}

static int run_file(const char *name) {
    FILE *file = fopen(name, "rb");
    if (file == NULL) {
        perror(name);
        return 1;
    }
    static uint8_t input[1 << 20];
    const size_t size = fread(input, 1, sizeof input, file);
    fclose(file);
    LLVMFuzzerTestOneInput(input, size);
    return 0;
}

int main(int count, char **arguments) {
    if (count >= 3 && strcmp(arguments[1], "--random") == 0) {
        run_random(strtoul(arguments[2], NULL, 10), count > 3 ? strtoull(arguments[3], NULL, 10) : 0);
        return 0;
    }
    int failed = 0;
    for (int i = 1; i < count; i++)
        failed |= run_file(arguments[i]);
    return failed;
}
