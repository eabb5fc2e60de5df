// SPDX-License-Identifier: Apache-2.0
// The ranks of a host as threads of one process that share a stream, each with many operations under way, over a UDP
// socket whose other end answers as the switch of a job of one worker would. For ThreadSanitizer, which cannot look into
// a Python process.
#include "p4reduce_local.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3, OPERATIONS = 24, AT_ONCE = 6, VALUES = 100000, MANY = (8 << 20) + 1000, BLOCK = 64, PACKET = 4096 };

static char meeting[64];
static struct sockaddr_in place;
static atomic_bool stop;

static void require(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

// The sum over one worker is what it sent.
static void *answer(void *context) {
    const int socket = *(int *)context;
    uint8_t packet[PACKET];
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    while (!stop) {
        const ssize_t length = recvfrom(socket, packet, sizeof packet, 0, (struct sockaddr *)&from, &size);
        if (length <= 0)
            continue;
        packet[0] = 0x12; // RESULT
        sendto(socket, packet, (size_t)length, 0, (struct sockaddr *)&from, size);
    }
    return NULL;
}

// Of a few values, of many, and of one that takes several tasks.
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
        const p4reduce_request request = {
            .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = values[i], .count = count_of(first + i)};
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

// The last rank gives up; the others hear of it.
static void fail(p4reduce_engine *engine, float *values, unsigned rank) {
    const p4reduce_request request = {
        .size = sizeof request, .type = P4REDUCE_FLOAT32, .data = values, .count = 100, .timeout = 60};
    p4reduce_error error = {.size = sizeof error};
    if (rank == RANKS - 1) {
        p4reduce_fail(engine, "enough");
        return;
    }
    require(p4reduce_allreduce(engine, &request, &error) == P4REDUCE_ABORTED, "that a rank has failed");
    require(error.rank == RANKS - 1, "which");
}

static void *run(void *context) {
    const unsigned rank = *(unsigned *)context;
    const int own = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    require(connect(own, (const struct sockaddr *)&place, sizeof place) == 0, "connect");
    const p4reduce_membership membership = {.size = sizeof membership,
                                            .job = 1,
                                            .rank = rank,
                                            .world_size = RANKS,
                                            .slots = 64,
                                            .lanes = 4,
                                            .block_size = BLOCK,
                                            .sharing = 1};
    const p4reduce_options options = {.size = sizeof options, .link = P4REDUCE_LINK_UDP, .socket = own};
    const p4reduce_local_options local = {.size = sizeof local, .meeting = meeting, .timeout = 20};
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = p4reduce_open_sharing(&membership, rank == 0 ? &options : NULL, &local, &error);
    require(engine != NULL, error.message);
    float *values[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        values[i] = malloc(count_of(i) * sizeof *values[i] + 1);
    for (int first = 0; first < OPERATIONS; first += AT_ONCE)
        reduce_some(engine, values, first, rank);
    fail(engine, values[0], rank);
    p4reduce_free(engine);
    close(own);
    for (int i = 0; i < AT_ONCE; i++)
        free(values[i]);
    return NULL;
}

int main(void) {
    snprintf(meeting, sizeof meeting, "p4reduce-test-%ld", (long)getpid());
    int switch_socket = socket(AF_INET, SOCK_DGRAM, 0);
    place = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof place;
    require(bind(switch_socket, (struct sockaddr *)&place, sizeof place) == 0, "bind");
    getsockname(switch_socket, (struct sockaddr *)&place, &size);
    const struct timeval patience = {.tv_usec = 100000};
    setsockopt(switch_socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    pthread_t answering, threads[RANKS];
    pthread_create(&answering, NULL, answer, &switch_socket);
    unsigned ranks[RANKS];
    for (unsigned rank = 0; rank < RANKS; rank++) {
        ranks[rank] = rank;
        require(pthread_create(&threads[rank], NULL, run, &ranks[rank]) == 0, "a thread");
    }
    for (unsigned rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    stop = true;
    pthread_join(answering, NULL);
    close(switch_socket);
    puts("well");
    return 0;
}
