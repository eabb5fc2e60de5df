// SPDX-License-Identifier: Apache-2.0
// A test for ThreadSanitizer, which cannot look into a Python process: the ranks of a job are threads of one process
// and share memory. Each has many operations under way, with tensors of its own and tensors that the others map.
#include "intranode/intranode.h"
#include "p4reduce_local.h"
#include "ranks.h"

struct rank {
    unsigned number, world_size;
    p4reduce_engine *engine;
};

static void *join(void *context) {
    struct rank *rank = context;
    const p4reduce_membership membership = {.size = sizeof membership,
                                            .rank = rank->number,
                                            .world_size = rank->world_size,
                                            .slots = 64,
                                            .lanes = 4,
                                            .block_size = BLOCK};
    const p4reduce_local_options options = {.size = sizeof options, .rendezvous = rendezvous, .timeout = 20};
    p4reduce_error error = {.size = sizeof error};
    rank->engine = p4reduce_open_local(&membership, &options, &error);
    require(rank->engine != NULL, error.message);
    return NULL;
}

static void *run(void *context) {
    struct rank *own = context;
    join(own);
    p4reduce_engine *engine = own->engine;
    p4reduce_error error = {.size = sizeof error};
    float *values[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++)
        values[i] = i % 2 ? p4reduce_shared_new(count_of(i) * sizeof *values[i], &error)
                          : malloc(count_of(i) * sizeof *values[i] + 1);
    for (int first = 0; first < OPERATIONS; first += AT_ONCE)
        reduce_some(engine, values, first, own->number);
    p4reduce_free(engine);
    for (int i = 0; i < AT_ONCE; i++)
        if (i % 2)
            p4reduce_shared_free(values[i]);
        else
            free(values[i]);
    return NULL;
}

static atomic_int ended_with;

static void note(void *context, const p4reduce_error *error) {
    (void)context;
    atomic_store(&ended_with, error != NULL ? (int)error->status : -1);
}

// Acts like a third rank that was killed just before it woke rank 0. Rank 0 must notice a failure all the same.
static void lose_a_wakeup(void) {
    struct rank ranks[] = {{.number = 0, .world_size = 2}, {.number = 1, .world_size = 2}};
    run_together("two", join, ranks, sizeof *ranks, 2);
    float values[BLOCK] = {1};
    p4reduce_request request = sum_of(values, BLOCK);
    request.on_end = note;
    p4reduce_error error = {.size = sizeof error};
    require(p4reduce_submit(ranks[0].engine, &request, NULL, &error) == P4REDUCE_OK, error.message);
    const struct segment *segment = &intranode_of(ranks[1].engine)->segment;
    while (atomic_load(&segment_call(segment, 0, 1)->number) == 0)
        usleep(100);
    while (atomic_exchange(&segment_rank(segment, 0)->sleeping, 0) == 0) // rank 0 soon sleeps
        usleep(100);
    p4reduce_fail(ranks[1].engine, "enough");
    for (int i = 0; i < 100 && atomic_load(&ended_with) == 0; i++)
        usleep(100000);
    require(atomic_load(&ended_with) == P4REDUCE_ABORTED, "that a rank has failed");
    p4reduce_free(ranks[0].engine);
    p4reduce_free(ranks[1].engine);
}

int main(void) {
    lose_a_wakeup();
    struct rank ranks[RANKS] = {{0}};
    for (unsigned rank = 0; rank < RANKS; rank++)
        ranks[rank] = (struct rank){.number = rank, .world_size = RANKS};
    run_together("all", run, ranks, sizeof *ranks, RANKS);
    puts("well");
    return 0;
}
