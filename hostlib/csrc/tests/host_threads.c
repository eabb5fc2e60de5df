// SPDX-License-Identifier: Apache-2.0
// A test for ThreadSanitizer, which cannot look into a Python process: the ranks of a host are threads of one process
// and share a stream, each with many operations under way. The other end of the UDP socket answers like the switch of a
// job of one worker.
#include "intranode/calls.h"
#include "intranode/wakeup.h"
#include "p4reduce_local.h"
#include "ranks.h"
#include "slots.h"
#include "switch.h"

static struct sockaddr_in address;

// Lets the last rank fail. The others must get its failure.
static void fail(p4reduce_engine *engine, float *values, unsigned rank) {
    const p4reduce_request request = sum_of(values, 100);
    p4reduce_error error = {.size = sizeof error};
    if (rank == RANKS - 1) {
        p4reduce_fail(engine, "enough");
        return;
    }
    require(p4reduce_allreduce(engine, &request, &error) == P4REDUCE_ABORTED, "that a rank has failed");
    require(error.rank == RANKS - 1, "which");
}

struct rank {
    unsigned number, world_size;
    int socket;
    p4reduce_engine *engine;
};

static void *join(void *context) {
    struct rank *rank = context;
    rank->socket = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    require(connect(rank->socket, (const struct sockaddr *)&address, sizeof address) == 0, "connect");
    const p4reduce_membership membership = {.size = sizeof membership,
                                            .job = 1,
                                            .rank = rank->number,
                                            .world_size = rank->world_size,
                                            .slots = SLOTS,
                                            .lanes = 4,
                                            .block_size = BLOCK,
                                            .sharing = 1};
    const p4reduce_options options = {.size = sizeof options, .link = P4REDUCE_LINK_UDP, .socket = rank->socket};
    const p4reduce_local_options local = {.size = sizeof local, .rendezvous = rendezvous, .timeout = 20};
    p4reduce_error error = {.size = sizeof error};
    rank->engine = p4reduce_open_sharing(&membership, rank->number == 0 ? &options : NULL, &local, &error);
    require(rank->engine != NULL, error.message);
    return NULL;
}

static void leave(struct rank *rank) {
    p4reduce_free(rank->engine);
    close(rank->socket);
}

static void *run(void *context) {
    struct rank *own = context;
    const unsigned rank = own->number;
    join(own);
    p4reduce_engine *engine = own->engine;
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
    leave(own);
    for (int i = 0; i < AT_ONCE; i++)
        free(values[i]);
    return NULL;
}

// Lets rank 1 call another operation than rank 0. It was stopped before it compared the two, so it did not report it.
static void call_other_things(void) {
    struct rank ranks[] = {{.number = 0, .world_size = 2}, {.number = 1, .world_size = 2}};
    run_together("two", join, ranks, sizeof *ranks, 2);
    float values[BLOCK] = {1};
    const p4reduce_request request = sum_of(values, BLOCK);
    p4reduce_error error = {.size = sizeof error};
    p4reduce_operation *operation;
    require(p4reduce_submit(ranks[0].engine, &request, &operation, &error) == P4REDUCE_OK, error.message);
    const struct intranode *node = intranode_of(ranks[1].engine);
    const struct call *call;
    while ((call = calls_get(node, 0, 1)) == NULL)
        usleep(100);
    struct call *other = segment_call(&node->segment, 1, 1);
    other->fingerprint = ~call->fingerprint;
    other->type = P4REDUCE_FLOAT32;
    snprintf(other->text, sizeof other->text, "something else");
    atomic_store(&other->scanned, 1);
    atomic_store(&other->number, 1);
    wakeup_all(node);
    require(p4reduce_wait(operation, 60, &error) == P4REDUCE_MISMATCH, "that the ranks' calls differ");
    require(strstr(error.message, "rank 1 has something else") != NULL, error.message);
    p4reduce_release(operation);
    leave(&ranks[0]);
    leave(&ranks[1]);
}

int main(void) {
    int switch_socket = bound(AF_INET);
    socklen_t size = sizeof address;
    getsockname(switch_socket, (struct sockaddr *)&address, &size);
    const struct timeval timeout = {.tv_usec = 100000};
    setsockopt(switch_socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    pthread_t answering;
    pthread_create(&answering, NULL, answer, &switch_socket);
    call_other_things();
    struct rank ranks[RANKS] = {{0}};
    for (unsigned rank = 0; rank < RANKS; rank++)
        ranks[rank] = (struct rank){.number = rank, .world_size = RANKS};
    run_together("all", run, ranks, sizeof *ranks, RANKS);
    stop = true;
    pthread_join(answering, NULL);
    close(switch_socket);
    puts("well");
    return 0;
}
