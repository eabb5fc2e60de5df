// SPDX-License-Identifier: Apache-2.0
// The ranks of a job as threads of one process, which share memory, each with many operations under way, of tensors of
// its own and of such that the others map. For ThreadSanitizer, which cannot look into a Python process.
#include "p4reduce_local.h"
#include "ranks.h"

#include <pthread.h>
#include <unistd.h>

static char meeting[64];

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
        values[i] = i % 2 ? p4reduce_shared_new(count_of(i) * sizeof *values[i], &error)
                          : malloc(count_of(i) * sizeof *values[i] + 1);
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
