// SPDX-License-Identifier: Apache-2.0
// The ranks of a job as threads of one process, which share memory, each with many operations under way, of tensors of
// its own and of such that the others map. For ThreadSanitizer, which cannot look into a Python process.
#include "p4reduce_local.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS = 3, OPERATIONS = 24, AT_ONCE = 4, VALUES = 3000000, BLOCK = 64 };

static char meeting[64];

static void require(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

// Of a few values, of many, and of tensors with many blocks of zeros.
static size_t count_of(int number) {
    static const size_t counts[] = {100, VALUES, 0, 70001};
    return counts[number % AT_ONCE];
}

static size_t step_of(int number) {
    return number / AT_ONCE % 2 ? 1 : 20 * BLOCK;
}

static void fill(float *values, int number, unsigned rank) {
    for (size_t i = 0; i < count_of(number); i++)
        values[i] = i / BLOCK * BLOCK % step_of(number) == 0 ? (float)(rank + 1) : 0;
}

static void check(const float *values, int number) {
    for (size_t i = 0; i < count_of(number); i++)
        require(values[i] == (i / BLOCK * BLOCK % step_of(number) == 0 ? RANKS * (RANKS + 1) / 2 : 0), "the sum");
}

static void reduce_some(p4reduce_engine *engine, float *const *values, int first, unsigned rank) {
    p4reduce_operation *operations[AT_ONCE];
    p4reduce_error error = {.size = sizeof error};
    for (int i = 0; i < AT_ONCE; i++) {
        fill(values[i], first + i, rank);
        const p4reduce_request request = {
            .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = values[i], .count = count_of(first + i)};
        require(p4reduce_submit(engine, &request, &operations[i], &error) == P4REDUCE_OK, error.message);
    }
    char text[200];
    p4reduce_progress(engine, text, sizeof text);
    p4reduce_stats stats = {.size = sizeof stats};
    p4reduce_get_stats(engine, &stats);
    for (int i = 0; i < AT_ONCE; i++) {
        require(p4reduce_wait(operations[i], 60, &error) == P4REDUCE_OK, error.message);
        p4reduce_release(operations[i]);
        check(values[i], first + i);
    }
}

static void *run(void *context) {
    const unsigned rank = *(unsigned *)context;
    const p4reduce_membership membership = {.size = sizeof membership,
                                            .rank = rank,
                                            .world_size = RANKS,
                                            .slots = 64,
                                            .lanes = 4,
                                            .block_size = BLOCK};
    const p4reduce_local_options options = {.size = sizeof options, .meeting = meeting, .timeout = 20};
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = p4reduce_open_local(&membership, &options, &error);
    require(engine != NULL, error.message);
    float *values[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        values[i] = i % 2 ? p4reduce_shared_new(VALUES * sizeof *values[i], &error) : malloc(VALUES * sizeof *values[i]);
    for (int first = 0; first < OPERATIONS; first += AT_ONCE)
        reduce_some(engine, values, first, rank);
    p4reduce_free(engine);
    for (int i = 0; i < AT_ONCE; i++)
        if (i % 2)
            p4reduce_shared_free(values[i]);
        else
            free(values[i]);
    return NULL;
}

int main(void) {
    snprintf(meeting, sizeof meeting, "p4reduce-test-%ld", (long)getpid());
    pthread_t threads[RANKS];
    unsigned ranks[RANKS];
    for (unsigned rank = 0; rank < RANKS; rank++) {
        ranks[rank] = rank;
        require(pthread_create(&threads[rank], NULL, run, &ranks[rank]) == 0, "a thread");
    }
    for (unsigned rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    puts("well");
    return 0;
}
