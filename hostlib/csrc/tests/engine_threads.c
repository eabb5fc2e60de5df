// SPDX-License-Identifier: Apache-2.0
// A test for ThreadSanitizer, which cannot look into a Python process: many threads use one engine at once, and an
// engine that has several threads itself. The other end of its UDP socket answers like the switch of a job of one rank.
#include "p4reduce.h"
#include "slots.h"
#include "switch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 4, OPERATIONS = 50, VALUES = 5000, MOST_OWN = 3, AGGREGATORS = 2 };

static atomic_int told;
static _Atomic pthread_t caller;

// Opens an engine with several threads of its own, and for each a socket for each aggregator: all are the same switch.
static p4reduce_engine *opened(int switch_socket, uint32_t own, int *sockets) {
    const uint32_t count = own * AGGREGATORS;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    getsockname(switch_socket, (struct sockaddr *)&address, &size);
    for (uint32_t i = 0; i < count; i++) {
        sockets[i] = socket(address.ss_family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        require(connect(sockets[i], (const struct sockaddr *)&address, size) == 0, "connect");
    }
    const p4reduce_membership membership = {
        .size = sizeof membership, .job = 1, .world_size = 1, .slots = SLOTS, .lanes = 1, .block_size = 64};
    const uint32_t jobs[MOST_OWN] = {2 << 16, 3 << 16};
    const p4reduce_options options = {.size = sizeof options,
                                      .link = P4REDUCE_LINK_UDP,
                                      .socket = sockets[0],
                                      .more_sockets = sockets + 1,
                                      .more_count = count - 1,
                                      .threads = own,
                                      .more_jobs = jobs};
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = p4reduce_open(&membership, &options, &error);
    require(engine != NULL, error.message);
    return engine;
}

static void on_end(void *context, const p4reduce_error *error) {
    (void)context;
    pthread_t nobody = 0;
    require(atomic_compare_exchange_strong(&caller, &nobody, pthread_self()) || pthread_equal(nobody, pthread_self()),
            "callbacks in one thread");
    told += error == NULL;
}

static void *use(void *context) {
    p4reduce_engine *engine = context;
    float *values = calloc(VALUES, sizeof *values);
    for (int number = 0; number < OPERATIONS; number++) {
        for (int i = 0; i < VALUES; i += 70)
            values[i] = (float)i;
        const p4reduce_request request = {.size = sizeof request,
                                          .type = P4REDUCE_FLOAT32,
                                          .data = values,
                                          .count = VALUES,
                                          .on_end = number % 2 ? on_end : NULL};
        p4reduce_error error = {.size = sizeof error};
        p4reduce_operation *operation;
        require(p4reduce_submit(engine, &request, &operation, &error) == P4REDUCE_OK, error.message);
        char text[200];
        p4reduce_progress(engine, text, sizeof text);
        require(p4reduce_wait(operation, 20, &error) == P4REDUCE_OK, error.message);
        p4reduce_release(operation);
        require(values[70] == 70 && values[71] == 0, "the sum");
        p4reduce_stats stats = {.size = sizeof stats};
        p4reduce_get_stats(engine, &stats);
        require(stats.operations > 0, "statistics");
    }
    free(values);
    return NULL;
}

// Submits operations without a handle, waits for some of them, and forgets some of these.
static void *run(void *context) {
    p4reduce_engine *engine = context;
    float value[1] = {3};
    p4reduce_error error = {.size = sizeof error};
    for (uintptr_t number = 0; number < OPERATIONS; number++) {
        void *own = (void *)((uintptr_t)value + number);
        const p4reduce_request request = {
            .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = value, .count = 1, .context = own};
        int ended;
        require(p4reduce_run(engine, &request, 1e-5, &ended, &error) == P4REDUCE_OK, error.message);
        while (ended == 0)
            ended = p4reduce_await(engine, own, 0.001, &error);
        require(ended < 0 || error.status == P4REDUCE_OK, "an end that is waited for");
        if (number % 2)
            p4reduce_forget(engine, own);
    }
    require(value[0] == 3, "a single value's sum");
    return NULL;
}

static void *collect(void *context) {
    p4reduce_engine *engine = context;
    p4reduce_error error = {.size = sizeof error};
    int ended = 0;
    while (p4reduce_next_ended(engine, -1, &error) != NULL)
        ended += error.status == P4REDUCE_OK;
    require(error.status == P4REDUCE_CLOSED, "the end of the engine");
    require(ended >= OPERATIONS + THREADS * OPERATIONS / 2, "operations without a handle");
    require(ended <= OPERATIONS + THREADS * OPERATIONS, "operations that are told of twice");
    return NULL;
}

// Moves the slots of the second aggregator again and again, until the engine is closed. Each thread's job has its
// number from before, and another generation.
static void *move_slots(void *context) {
    p4reduce_engine *engine = context;
    for (uint32_t moves = 0;; moves++) {
        uint32_t jobs[MOST_OWN], rounds[SLOTS];
        const int64_t count = p4reduce_suspend(engine, 1, rounds, SLOTS);
        if (count < 0)
            return (void *)(intptr_t)moves;
        for (uint32_t thread = 0; thread < MOST_OWN; thread++)
            jobs[thread] = (thread + 1) << 16 | (moves % 2 + 1);
        p4reduce_move(engine, 1, 0, jobs, rounds, (size_t)count);
        usleep(30000); // answers must come before the next move
    }
}

// Runs the test with an engine of several threads, and takes the switch's socket.
static void try(uint32_t own, int switch_socket) {
    stop = false;
    told = 0;
    caller = 0;
    int sockets[MOST_OWN * AGGREGATORS];
    const struct timeval timeout = {.tv_usec = 100000};
    setsockopt(switch_socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);

    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = opened(switch_socket, own, sockets);

    pthread_t answering, collecting, changing, using[THREADS], running[THREADS];
    pthread_create(&answering, NULL, answer, &switch_socket);
    pthread_create(&collecting, NULL, collect, engine);
    // Only the slots of one thread can change. Slots do not move while they change.
    pthread_create(&changing, NULL, own > 1 ? move_slots : change_slots, engine);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&using[i], NULL, use, engine);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&running[i], NULL, run, engine);
    float one[1];
    for (int number = 0; number < OPERATIONS; number++) {
        const p4reduce_request request = {
            .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = one, .count = 0, .context = one};
        require(p4reduce_submit(engine, &request, NULL, &error) == P4REDUCE_OK, error.message);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(using[i], NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(running[i], NULL);
    const p4reduce_request empty = {.size = sizeof empty, .type = P4REDUCE_INT32};
    require(p4reduce_allreduce(engine, &empty, &error) == P4REDUCE_OK, "an empty array");
    p4reduce_fail(engine, "enough");
    require(p4reduce_allreduce(engine, &empty, &error) == P4REDUCE_FAILED, "failing");
    p4reduce_close(engine);
    pthread_join(collecting, NULL);
    void *changes;
    pthread_join(changing, &changes);
    require(changes != NULL, "changes of slots");
    p4reduce_free(engine);
    stop = true;
    pthread_join(answering, NULL);
    for (uint32_t i = 0; i < own * AGGREGATORS; i++)
        close(sockets[i]);
    close(switch_socket);
    require(told == THREADS * OPERATIONS / 2, "callbacks");
}

// Closes an engine with operations under way. Once they have ended, it must not touch them any more.
static void end_under_way(uint32_t own) {
    int sockets[MOST_OWN * AGGREGATORS];
    int switch_socket = bound(AF_INET);
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = opened(switch_socket, own, sockets);
    p4reduce_operation *operations[THREADS];
    float *values[THREADS];
    for (int i = 0; i < THREADS; i++) {
        values[i] = calloc(VALUES, sizeof **values);
        const p4reduce_request request = {
            .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = values[i], .count = VALUES};
        require(p4reduce_submit(engine, &request, &operations[i], &error) == P4REDUCE_OK, error.message);
    }
    p4reduce_hold(engine, 0);
    p4reduce_fail(engine, "enough");
    for (int i = 0; i < THREADS; i++) {
        require(p4reduce_wait(operations[i], 20, &error) == P4REDUCE_FAILED, "an operation under way");
        free(values[i]);
        p4reduce_release(operations[i]);
    }
    p4reduce_free(engine);
    for (uint32_t i = 0; i < own * AGGREGATORS; i++)
        close(sockets[i]);
    close(switch_socket);
}

int main(void) {
    for (uint32_t own = 1; own <= MOST_OWN; own++) {
        try(own, bound(AF_INET));
        end_under_way(own);
    }
    const int over_ipv6 = bound(AF_INET6);
    if (over_ipv6 >= 0)
        try(MOST_OWN, over_ipv6);
    puts("well");
    return 0;
}
