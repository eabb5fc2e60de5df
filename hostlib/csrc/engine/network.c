// SPDX-License-Identifier: Apache-2.0
#include "engine/network.h"

#include "base/awaited.h"
#include "base/clock.h"
#include "engine/packets.h"
#include "engine/pause.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_POLLS_WITH_BACKLOG = 64 }; // turns without timers, so that a flood of packets cannot hold them up for ever
static const double SILENCE_S = 3;     // without an answer, after which the switch is said not to answer
static const double STALL_S = 2;       // delay of a turn after which the process is said to have been stopped

// Returns the seconds since `since` in which this process ran and could have received answers.
static double time_running(const p4reduce_engine *engine, double since, double now) {
    return now - since - fmax(0, engine->stall_end - fmax(engine->stall_start, since));
}

// Records the interval since this turn was due, if it is so long that the process must have been stopped.
static void note_stall(p4reduce_engine *engine, double now) {
    const double due = fmax(engine->last_poll, engine->poll_deadline);
    if (engine->oldest != NULL && now - due > STALL_S) {
        engine->stall_start = due;
        engine->stall_end = now;
    }
    engine->last_poll = now;
    engine->poll_deadline = 0;
}

void network_describe_stall(const p4reduce_engine *engine, char *text, size_t room) {
    const size_t used = strlen(text);
    if (engine->oldest != NULL && engine->stall_end > engine->oldest_since)
        snprintf(text + used, room - used, "; this rank's own process was stopped for %.1f s",
                 engine->stall_end - fmax(engine->stall_start, engine->oldest_since));
}

// Writes in words what the operations wait for, in the same words as python_engine.py.
static void describe_answers(const p4reduce_engine *engine, double now, char *text, size_t room) {
    uint32_t awaited[AWAITED_WORDS];
    struct aggregator_state silent = {engine->switch_address, engine->heard_at, engine->link->trouble};
    if (engine->link->longest_silent != NULL)
        silent = engine->link->longest_silent(engine->link);
    const double since = silent.heard_at > engine->oldest_since ? silent.heard_at : engine->oldest_since;
    const double silence = time_running(engine, since, now);
    if (silent.heard_at < engine->oldest_since || silence > SILENCE_S) {
        char hint[64] = "";
        if (silent.trouble)
            snprintf(hint, sizeof hint, " (%s)", strerror(silent.trouble));
        snprintf(text, room,
                 "the switch at %s has not answered for %.1f s%s. Check that it runs, that this host (%s) can reach "
                 "it, that it still has the job, and that no rank is ahead of the others",
                 silent.address, silence, hint, engine->local_address);
        return;
    }
    char ranks[AWAITED_TEXT_BYTES];
    const bool known = p4reduce_worker_awaited(engine->worker, awaited) && awaited_ranks(awaited, ranks);
    snprintf(text, room, "waiting for %s; last answer from the switch at %s: %.1f s ago", known ? ranks : "results",
             silent.address, silence);
}

void network_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    snapshot->stats = engine->worker->stats;
    if (!pause_describe(engine, now, snapshot->progress, sizeof snapshot->progress))
        describe_answers(engine, now, snapshot->progress, sizeof snapshot->progress);
    network_describe_stall(engine, snapshot->progress, sizeof snapshot->progress);
    engine->link->describe(engine->link, snapshot->link, sizeof snapshot->link);
    snapshot->unanswered = p4reduce_worker_unanswered(engine->worker, now, SILENCE_S);
    const struct task *oldest = engine->worker->oldest;
    snapshot->busy = oldest != NULL;
    snapshot->oldest = oldest != NULL ? oldest->counter : 0;
    p4reduce_worker_awaited(engine->worker, snapshot->awaited);
}

// Operations.

void network_expect(p4reduce_engine *engine, const p4reduce_operation *operation) {
    const struct task *task = operation->task;
    if (engine->oldest == operation && engine->link->expect != NULL)
        engine->link->expect(engine->link, task->blocks / engine->membership.lanes);
    if (task->all_slots > atomic_load_explicit(&engine->most_slots, memory_order_relaxed))
        atomic_store(&engine->most_slots, task->all_slots);
}

void network_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    struct task *task = operation->task;
    network_expect(engine, operation);
    operation->task = NULL; // the worker owns it from here on
    engine->worker->counter = (uint32_t)operation->number;
    worker_submit(engine->worker, task, now);
}

void network_fail(p4reduce_engine *engine, const p4reduce_error *error) {
    const p4reduce_error failure = engine_set_failure(engine, error);
    worker_fail(engine->worker, &failure);
    p4reduce_operation *next = pause_end(engine);
    while (next != NULL) {
        p4reduce_operation *operation = next;
        next = operation->next;
        network_begin(engine, operation, 0); // the worker has failed, and so ends it at once
    }
}

// Turns.

bool network_begin_turn(p4reduce_engine *engine, double *now) {
    // Packets that came while no operation was in flight are not urgent: the first packets of a new one are sent first.
    const bool begins = engine->oldest == NULL && atomic_load(&engine->requests_pending);
    const bool drained = begins || engine_receive_packets(engine);
    *now = clock_now();
    note_stall(engine, *now);
    if (atomic_load(&engine->requests_pending))
        engine_handle_requests(engine, *now);
    return drained;
}

bool network_end_turn(p4reduce_engine *engine, bool drained, double now) {
    p4reduce_error error;
    // The timers run only when all packets are read: they must not send packets again whose answers have arrived.
    engine->polls_with_backlog = drained ? 0 : engine->polls_with_backlog + 1;
    if (drained || engine->polls_with_backlog > MOST_POLLS_WITH_BACKLOG) {
        p4reduce_worker_tick(engine->worker, now);
        engine_check_time_limit(engine, now);
    }
    if (!engine_send_packets(engine, &error))
        engine->ops->fail(engine, &error);
    if (engine->worker->failure.status != P4REDUCE_OK)
        engine->ops->fail(engine, &engine->worker->failure);
    if (engine->pause.paused)
        pause_report(engine);
    return drained && !engine->must_stop;
}

bool network_turn(p4reduce_engine *engine) {
    double now;
    const bool drained = network_begin_turn(engine, &now);
    return network_end_turn(engine, drained, now);
}

struct wait_set network_wait(p4reduce_engine *engine, double limit) {
    engine_coalesce_answers(engine);
    struct wait_set set = {
        .descriptors = {{.fd = engine->link->socket, .events = (short)(engine->link->full ? POLLIN | POLLOUT : POLLIN)},
                        {.fd = engine->wake, .events = POLLIN},
                        {.fd = -1}},
        .deadline = fmin(limit, p4reduce_worker_deadline(engine->worker)),
    };
    if (engine->oldest != NULL)
        set.deadline = fmin(set.deadline, engine->oldest_since + engine->oldest->timeout);
    engine->poll_deadline = set.deadline;
    return set;
}
