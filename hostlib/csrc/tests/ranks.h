// SPDX-License-Identifier: Apache-2.0
// The operations of ranks that are threads of one process: many at a time, with several sizes and densities.
#ifndef P4REDUCE_TESTS_RANKS_H
#define P4REDUCE_TESTS_RANKS_H

#include "p4reduce.h"
#include "require.h"

#include <pthread.h>
#include <unistd.h>

enum { RANKS = 3, OPERATIONS = 24, AT_ONCE = 6, VALUES = 100000, MANY = (8 << 20) + 1000, BLOCK = 64 };

static char rendezvous[64];

// Calls `run` for each context, of `size` bytes, in a thread of its own. The threads are ranks that meet under a name
// of their own.
static void run_together(const char *what, void *(*run)(void *), void *contexts, size_t size, unsigned count) {
    snprintf(rendezvous, sizeof rendezvous, "p4reduce-test-%ld of %s", (long)getpid(), what);
    pthread_t threads[RANKS];
    for (unsigned i = 0; i < count; i++)
        require(pthread_create(&threads[i], NULL, run, (char *)contexts + i * size) == 0, "a thread");
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static p4reduce_request sum_of(float *values, size_t count) {
    return (p4reduce_request){
        .size = sizeof(p4reduce_request), .type = P4REDUCE_FLOAT32, .data = values, .count = count, .timeout = 60};
}

// Returns the number of values of an operation: few, many, or so many that it takes several tasks.
static size_t count_of(int number) {
    static const size_t counts[] = {100, VALUES, 0, MANY, 70001, 3};
    return counts[number % AT_ONCE];
}

static size_t step_of(int number) {
    return count_of(number) == MANY ? 4096 * BLOCK : number / AT_ONCE % 2 ? 1 : 20 * BLOCK;
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
        const p4reduce_request request = sum_of(values[i], count_of(first + i));
        require(p4reduce_submit(engine, &request, &operations[i], &error) == P4REDUCE_OK, error.message);
    }
    char text[200];
    p4reduce_progress(engine, text, sizeof text);
    p4reduce_stats stats = {.size = sizeof stats};
    p4reduce_get_stats(engine, &stats);
    for (int i = 0; i < AT_ONCE; i++) {
        require(p4reduce_wait(operations[i], 100, &error) == P4REDUCE_OK, error.message);
        p4reduce_release(operations[i]);
        check(values[i], first + i);
    }
}

#endif
