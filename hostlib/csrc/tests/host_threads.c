// SPDX-License-Identifier: Apache-2.0
// The ranks of a host as threads of one process that share a stream, each with many operations under way, over a UDP
// socket whose other end answers as the switch of a job of one worker would. For ThreadSanitizer, which cannot look into
// a Python process.
#include "p4reduce_local.h"
#include "ranks.h"
#include "slots.h"
#include "switch.h"

#include <pthread.h>
#include <unistd.h>

static char meeting[64];
static struct sockaddr_in place;

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
                                            .slots = SLOTS,
                                            .lanes = 4,
                                            .block_size = BLOCK,
                                            .sharing = 1};
    const p4reduce_options options = {.size = sizeof options, .link = P4REDUCE_LINK_UDP, .socket = own};
    const p4reduce_local_options local = {.size = sizeof local, .meeting = meeting, .timeout = 20};
    p4reduce_error error = {.size = sizeof error};
    p4reduce_engine *engine = p4reduce_open_sharing(&membership, rank == 0 ? &options : NULL, &local, &error);
    require(engine != NULL, error.message);
    pthread_t changing;
    void *changes;
    pthread_create(&changing, NULL, change_slots, engine);
    float *values[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        values[i] = malloc(count_of(i) * sizeof *values[i] + 1);
    for (int first = 0; first < OPERATIONS; first += AT_ONCE)
        reduce_some(engine, values, first, rank);
    fail(engine, values[0], rank);
    p4reduce_close(engine);
    pthread_join(changing, &changes);
    require((rank == 0) == (changes != NULL), "changes of slots, by the leader alone");
    p4reduce_free(engine);
    close(own);
    for (int i = 0; i < AT_ONCE; i++)
        free(values[i]);
    return NULL;
}

int main(void) {
    snprintf(meeting, sizeof meeting, "p4reduce-test-%ld", (long)getpid());
    int switch_socket = bound();
    socklen_t size = sizeof place;
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
