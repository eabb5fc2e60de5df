// SPDX-License-Identifier: Apache-2.0
// Making and unmaking an engine.
#include "engine/engine_team.h"
#include "engine/engine_thread.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_turns.h"
#include "intranode/host.h"
#include "intranode/local_thread.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

void engine_destroy(p4reduce_engine *engine) {
    team_destroy(engine);
    while (engine->soonest != NULL) {
        p4reduce_operation *operation = engine->soonest;
        engine->soonest = operation->later;
        free(operation);
    }
    if (engine->link != NULL)
        engine->link->free(engine->link);
    p4reduce_worker_free(engine->worker);
    local_close(engine->local);
    host_close(engine->host);
    if (engine->wake >= 0)
        close(engine->wake);
    free(engine->payloads);
    free(engine->sorted);
    free(engine->grouped);
    pthread_cond_destroy(&engine->changed);
    pthread_cond_destroy(&engine->untold);
    pthread_cond_destroy(&engine->driving.left);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void p4reduce_free(p4reduce_engine *engine) {
    if (engine == NULL)
        return;
    p4reduce_close(engine);
    engine_destroy(engine);
}

static struct link *open_dealt(const p4reduce_options *options, p4reduce_error *error) {
    int sockets[MAX_AGGREGATORS] = {options->socket};
    if (options->link != P4REDUCE_LINK_UDP || options->more_count >= MAX_AGGREGATORS) {
        error_tell(error, P4REDUCE_INVALID,
                   "link is %" PRIu32 " with %" PRIu32 " more sockets: accepted are UDP (%d) and at most %d",
                   options->link, options->more_count, P4REDUCE_LINK_UDP, MAX_AGGREGATORS - 1);
        return NULL;
    }
    if (!engine_check_sockets(options, error))
        return NULL;
    for (uint32_t i = 0; i < options->more_count; i++)
        sockets[i + 1] = options->more_sockets[i];
    return dealt_open(sockets, options->more_count + 1, error);
}

bool engine_check_sockets(const p4reduce_options *options, p4reduce_error *error) {
    const uint32_t count = options->more_sockets != NULL ? options->more_count : 0;
    for (uint32_t i = 0; i <= count; i++) {
        const int32_t socket = i == 0 ? options->socket : options->more_sockets[i - 1];
        bool taken = socket < 0;
        for (uint32_t before = 0; before < i; before++)
            taken |= socket == (before == 0 ? options->socket : options->more_sockets[before - 1]);
        if (taken) {
            error_tell(error, P4REDUCE_INVALID, "a socket is %" PRId32 ": accepted are open ones, each once", socket);
            return false;
        }
    }
    return true;
}

static struct link *open_link(const p4reduce_options *options, const struct layout *layout, p4reduce_error *error) {
    if (options->more_sockets != NULL && options->more_count > 0)
        return open_dealt(options, error);
    if (options->link == P4REDUCE_LINK_UDP)
        return udp_open(options->socket, error);
    if (options->link == P4REDUCE_LINK_PACKET && options->headers != NULL)
        return packet_socket_open(options->socket, options->headers, layout, error);
    error_tell(error, P4REDUCE_INVALID,
               "link is %" PRIu32 ": accepted are UDP (%d), and PACKET (%d) together with headers", options->link,
               P4REDUCE_LINK_UDP, P4REDUCE_LINK_PACKET);
    return NULL;
}

// The parts that need nothing but memory, so that `engine_destroy` finds them all.
p4reduce_engine *engine_make(const char *switch_address, const char *local_address) {
    p4reduce_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return NULL;
    engine->failure = engine->outside = (p4reduce_error){.size = sizeof engine->failure, .rank = -1};
    engine->heard_at = -(double)INFINITY;
    engine->driving.taken = true; // by the thread, from before it runs
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &attributes);
    pthread_cond_init(&engine->untold, &attributes);
    pthread_cond_init(&engine->driving.left, &attributes);
    pthread_condattr_destroy(&attributes);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    snprintf(engine->switch_address, sizeof engine->switch_address, "%s",
             switch_address != NULL ? switch_address : "an unnamed address");
    snprintf(engine->local_address, sizeof engine->local_address, "%s",
             local_address != NULL ? local_address : "here");
    return engine;
}

bool engine_open_network(p4reduce_engine *engine, const p4reduce_membership *membership,
                         const p4reduce_options *options, p4reduce_error *error) {
    engine->worker = p4reduce_worker_new(membership, options->timing, error);
    if (engine->worker == NULL)
        return false;
    engine->membership = engine->worker->membership;
    engine->link = open_link(options, &engine->worker->rounds.layout, error);
    if (engine->link == NULL)
        return false;
    engine->payloads = calloc(engine->membership.slots, sizeof *engine->payloads);
    engine->sorted = calloc(engine->membership.slots, sizeof *engine->sorted);
    engine->grouped = calloc(engine->membership.slots, sizeof *engine->grouped);
    if (engine->payloads != NULL && engine->sorted != NULL && engine->grouped != NULL)
        return true;
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
    return false;
}

bool engine_start(p4reduce_engine *engine, void *(*run)(void *), const char *name, p4reduce_error *error) {
    if (engine->wake < 0) {
        error_tell(error, P4REDUCE_SYSTEM, "no eventfd: errno %d", errno);
        return false;
    }
    // Signals are for the program's own threads.
    sigset_t all, former;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    const int refused = pthread_create(&engine->thread, NULL, run, engine);
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    if (refused) {
        error_tell(error, P4REDUCE_SYSTEM, "no thread: errno %d", refused);
        return false;
    }
    pthread_setname_np(engine->thread, name != NULL ? name : "p4reduce");
    return true;
}

void engine_stop(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->take_snapshot(engine, clock_now());
    engine->answered = engine->asked;
    engine->stopped = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_cond_broadcast(&engine->untold);
    pthread_mutex_unlock(&engine->lock);
}

p4reduce_engine *engine_prepare(const p4reduce_membership *membership, const p4reduce_options *options,
                                p4reduce_error *error) {
    p4reduce_engine *engine = engine_make(options->switch_address, options->local_address);
    if (engine == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    engine->take_snapshot = engine_take_snapshot;
    if (engine_open_network(engine, membership, options, error)) {
        if (!engine->membership.sharing)
            return engine;
        error_tell(error, P4REDUCE_INVALID, "sharing is %" PRIu32 ": accepted by p4reduce_open_sharing alone",
                   engine->membership.sharing);
    }
    engine_destroy(engine);
    return NULL;
}

p4reduce_engine *p4reduce_open(const p4reduce_membership *membership, const p4reduce_options *theirs,
                               p4reduce_error *error) {
    p4reduce_options options;
    if (!structure_in(&options, sizeof options, theirs, "options", error))
        return NULL;
    if (options.threads > 1)
        return team_open(membership, &options, error);
    p4reduce_engine *engine = engine_prepare(membership, &options, error);
    if (engine == NULL || engine_start(engine, engine_run, options.thread_name, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}
