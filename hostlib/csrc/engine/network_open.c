// SPDX-License-Identifier: Apache-2.0
#include "engine/network_open.h"

#include "base/structures.h"
#include "engine/lifecycle.h"

#include <inttypes.h>
#include <stdlib.h>

// Returns the socket with number `index` of all that the options have.
static int32_t socket_of(const p4reduce_options *options, uint32_t index) {
    return index == 0 ? options->socket : options->more_sockets[index - 1];
}

bool engine_check_sockets(const p4reduce_options *options, p4reduce_error *error) {
    for (uint32_t i = 0; i <= options->more_count; i++) {
        const int32_t socket = socket_of(options, i);
        bool refused = socket < 0;
        for (uint32_t before = 0; before < i; before++)
            refused |= socket == socket_of(options, before);
        if (refused) {
            error_tell(error, P4REDUCE_INVALID, "a socket is %" PRId32 ": accepted are open ones, each once", socket);
            return false;
        }
    }
    return true;
}

// Opens a link to several aggregators, one socket each. `own`: number << 16 | generation of the worker's job.
static struct link *open_striped(const p4reduce_options *options, uint32_t own, p4reduce_error *error) {
    int sockets[MAX_AGGREGATORS];
    if (options->link != P4REDUCE_LINK_UDP || options->more_count >= MAX_AGGREGATORS) {
        error_tell(error, P4REDUCE_INVALID,
                   "link is %" PRIu32 " with %" PRIu32 " more sockets: accepted are UDP (%d) and at most %d",
                   options->link, options->more_count, P4REDUCE_LINK_UDP, MAX_AGGREGATORS - 1);
        return NULL;
    }
    if (options->spares > options->more_count) {
        error_tell(error, P4REDUCE_INVALID, "spares are %" PRIu32 " of %" PRIu32 " sockets: accepted are fewer",
                   options->spares, options->more_count + 1);
        return NULL;
    }
    if (!engine_check_sockets(options, error))
        return NULL;
    for (uint32_t i = 0; i <= options->more_count; i++)
        sockets[i] = socket_of(options, i);
    return striped_open(sockets, options->more_count + 1, options->spares, options->aggregator_jobs, own, error);
}

static struct link *open_link(const p4reduce_options *options, const struct p4reduce_worker *worker,
                              p4reduce_error *error) {
    if ((options->more_sockets != NULL && options->more_count > 0) || options->aggregator_jobs != NULL)
        return open_striped(options, worker->membership.job << 16 | worker->membership.generation, error);
    if (options->link == P4REDUCE_LINK_UDP)
        return udp_open(options->socket, error);
    if (options->link == P4REDUCE_LINK_PACKET && options->headers != NULL)
        return packet_socket_open(options->socket, options->headers, &worker->rounds.layout, error);
    error_tell(error, P4REDUCE_INVALID,
               "link is %" PRIu32 ": accepted are UDP (%d), and PACKET (%d) together with headers", options->link,
               P4REDUCE_LINK_UDP, P4REDUCE_LINK_PACKET);
    return NULL;
}

bool engine_open_network(p4reduce_engine *engine, const p4reduce_membership *membership,
                         const p4reduce_options *options, p4reduce_error *error) {
    engine->worker = p4reduce_worker_new(membership, options->timing, error);
    if (engine->worker == NULL)
        return false;
    engine->membership = engine->worker->membership;
    engine->link = open_link(options, engine->worker, error);
    if (engine->link == NULL)
        return false;
    if (engine->link->aggregators > 1 &&
        p4reduce_worker_set_aggregators(engine->worker, engine->link->aggregators, error) != P4REDUCE_OK)
        return false;
    engine->payloads = calloc(engine->membership.slots, sizeof *engine->payloads);
    engine->sorted = calloc(engine->membership.slots, sizeof *engine->sorted);
    engine->grouped = calloc(engine->membership.slots, sizeof *engine->grouped);
    if (engine->payloads != NULL && engine->sorted != NULL && engine->grouped != NULL)
        return true;
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
    return false;
}

void engine_close_network(p4reduce_engine *engine) {
    if (engine->link != NULL)
        engine->link->free(engine->link); // the socket is the caller's again
    p4reduce_worker_free(engine->worker);
    free(engine->payloads);
    free(engine->sorted);
    free(engine->grouped);
}

p4reduce_engine *engine_prepare(const struct engine_ops *ops, const p4reduce_membership *membership,
                                const p4reduce_options *options, p4reduce_error *error) {
    p4reduce_engine *engine = engine_make(ops, options, error);
    if (engine == NULL)
        return NULL;
    if (engine_open_network(engine, membership, options, error)) {
        if (!engine->membership.sharing)
            return engine;
        error_tell(error, P4REDUCE_INVALID, "sharing is %" PRIu32 ": accepted by p4reduce_open_sharing alone",
                   engine->membership.sharing);
    }
    engine_destroy(engine);
    return NULL;
}
