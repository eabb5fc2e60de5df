// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_turns.h"

#include "base/awaited.h"
#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_bell.h"
#include "engine/engine_holding.h"
#include "engine/engine_packets.h"
#include "intranode/host_leader.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { MOST_WET_TURNS = 64 }; // so that a flood of packets cannot keep the engine from its timers
static const double SILENCE_S = 3;
static const double STANDSTILL_S = 2; // how much later than it was due a turn may be

// Seconds since `since` in which this process could have looked for answers.
static double looked_for(const p4reduce_engine *engine, double since, double now) {
    return now - since - fmax(0, engine->stood_to - fmax(engine->stood_from, since));
}

static void note_standstill(p4reduce_engine *engine, double now) {
    const double due = fmax(engine->looked_at, engine->look_due);
    if (engine->oldest != NULL && now - due > STANDSTILL_S) {
        engine->stood_from = due;
        engine->stood_to = now;
    }
    engine->looked_at = now;
    engine->look_due = 0;
}

// Of the oldest operation, what is to be known besides.
static void describe_standstill(const p4reduce_engine *engine, char *text, size_t room) {
    const size_t used = strlen(text);
    if (engine->oldest != NULL && engine->stood_to > engine->oldest_since)
        snprintf(text + used, room - used, "; this rank's own process was stopped for %.1f s",
                 engine->stood_to - fmax(engine->stood_from, engine->oldest_since));
}

// What the operations are waiting for, in words, as engine.py says it.
static void describe_answers(const p4reduce_engine *engine, double now, char *text, size_t room) {
    uint32_t awaited[8];
    struct quiet quiet = {engine->switch_address, engine->heard_at, engine->link->trouble};
    if (engine->link->quietest != NULL)
        quiet = engine->link->quietest(engine->link);
    const double since = quiet.heard_at > engine->oldest_since ? quiet.heard_at : engine->oldest_since;
    const double silence = looked_for(engine, since, now);
    if (quiet.heard_at < engine->oldest_since || silence > SILENCE_S) {
        char hint[64] = "";
        if (quiet.trouble)
            snprintf(hint, sizeof hint, " (%s)", strerror(quiet.trouble));
        snprintf(text, room,
                 "the switch at %s has not answered for %.1f s%s. Check that it runs, that this host (%s) can reach "
                 "it, that it still has the job, and that no rank is ahead of the others",
                 quiet.address, silence, hint, engine->local_address);
        return;
    }
    char ranks[AWAITED_TEXT_BYTES];
    const bool known = p4reduce_worker_awaited(engine->worker, awaited) && awaited_ranks(awaited, ranks);
    snprintf(text, room, "waiting for %.380s; last answer from the switch at %s: %.1f s ago", known ? ranks : "results",
             quiet.address, silence);
}

static void describe_wait(const p4reduce_engine *engine, double now, char *text, size_t room) {
    uint32_t awaited[8];
    if (!holding_awaits(engine, now, text, room) &&
        (engine->host == NULL || !leader_awaits(engine, text, room, awaited)))
        describe_answers(engine, now, text, room);
    describe_standstill(engine, text, room);
}

// Operations.

// As far as the controller is now.
static void change_slots(p4reduce_engine *engine, double now) {
    p4reduce_error error;
    if (!holding_go_on(engine, now, &error) || !holding_hold(engine, now, &error))
        engine_fail(engine, &error);
}

static void begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    if (engine->oldest == NULL && engine->link->expect != NULL)
        engine->link->expect(engine->link, operation->task->blocks / engine->membership.lanes);
    engine_began(engine, operation, now);
    p4reduce_error error;
    if (!holding_begin(engine, operation, now, &error))
        engine_fail(engine, &error);
}

// Other threads.

static void take_snapshot(const p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    snapshot->stats = engine->worker->stats;
    snapshot->stats.seconds = engine->seconds + (engine->oldest != NULL ? now - engine->busy_since : 0);
    describe_wait(engine, now, snapshot->progress, sizeof snapshot->progress);
    engine->link->describe(engine->link, snapshot->link, sizeof snapshot->link);
    if (engine->host != NULL) {
        snapshot->stats.operations = engine->host->stats.operations; // which may be of several tasks each
        leader_describe(engine, snapshot->link, sizeof snapshot->link);
    }
    snapshot->unanswered = p4reduce_worker_unanswered(engine->worker, now, SILENCE_S);
    const struct task *oldest = engine->worker->oldest;
    snapshot->busy = oldest != NULL;
    snapshot->oldest = oldest != NULL ? oldest->counter : 0;
    uint32_t *awaited = snapshot->awaited;
    char text[TEXT_BYTES];
    if (engine->host == NULL || !leader_awaits(engine, text, sizeof text, awaited))
        p4reduce_worker_awaited(engine->worker, awaited);
}

void engine_take_snapshot(p4reduce_engine *engine, double now) {
    take_snapshot(engine, now, &engine->snapshot);
}

// Once: the others of the team fail as well.
static void tell_team(p4reduce_engine *engine, const p4reduce_error *failure) {
    if (engine->team != NULL && !engine->told_team)
        engine->team->failed(engine->team, engine, failure);
    engine->told_team = true;
}

// Under the lock: takes the next operation out of the inbox. A callback is the engine's thread's to call, so no other
// begins an operation that has one.
static p4reduce_operation *next_of_inbox(p4reduce_engine *engine) {
    const p4reduce_operation *first = engine->inbox.first;
    if (first != NULL && first->on_end != NULL && engine->driving.lent) {
        engine->driving.owed = true;
        return NULL;
    }
    return operation_pop(&engine->inbox);
}

static void end_all(p4reduce_engine *engine, const p4reduce_error *failure) {
    worker_fail(engine->worker, failure);
    holding_end(engine);
    if (engine->host != NULL)
        leader_fail(engine, failure);
    tell_team(engine, failure);
}

void engine_take_news(p4reduce_engine *engine, double now) {
    pthread_mutex_lock(&engine->lock);
    bell_answer(engine);
    if (engine->holding.to_go_on || engine->holding.to_hold) {
        pthread_mutex_unlock(&engine->lock);
        change_slots(engine, now);
        pthread_mutex_lock(&engine->lock);
    }
    const struct counted *counted = &engine->told_of;
    if (counted->news && p4reduce_worker_is_impossible(engine->worker, counted->half, counted->seq))
        error_fill(&engine->outside, P4REDUCE_MISMATCH, "%s", counted->message);
    engine->told_of.news = false;
    if (engine->outside.status != P4REDUCE_OK)
        engine_keep_failure(engine, &engine->outside);
    const p4reduce_error failure = engine->failure;
    engine->must_stop = engine->closing;
    if (failure.status != P4REDUCE_OK) {
        pthread_mutex_unlock(&engine->lock);
        end_all(engine, &failure);
        pthread_mutex_lock(&engine->lock);
    }
    engine_finish_done(engine);
    p4reduce_operation *operation;
    while ((operation = next_of_inbox(engine)) != NULL) {
        pthread_mutex_unlock(&engine->lock);
        begin(engine, operation, now);
        pthread_mutex_lock(&engine->lock);
    }
    engine_answer(engine, now);
    pthread_mutex_unlock(&engine->lock);
}

void engine_fail(p4reduce_engine *engine, const p4reduce_error *error) {
    const p4reduce_error failure = engine_set_failure(engine, error);
    end_all(engine, &failure);
}

static void check_time_limit(p4reduce_engine *engine, double now) {
    const p4reduce_operation *oldest = engine->oldest;
    if (oldest == NULL || now - engine->oldest_since < oldest->timeout)
        return;
    struct snapshot wait;
    take_snapshot(engine, now, &wait);
    if (engine->team != NULL)
        wait = engine->team->furthest(engine->team, &wait);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", oldest->name, oldest->timeout,
               wait.progress);
    memcpy(error.awaited, wait.awaited, sizeof error.awaited);
    engine_fail(engine, &error);
}

// The loop.

bool engine_turn(p4reduce_engine *engine) {
    // What came while nothing was under way can wait for an operation's first packets.
    const bool begins = engine->oldest == NULL && atomic_load(&engine->news);
    const bool dry = begins || engine_receive_packets(engine);
    const double now = clock_now();
    note_standstill(engine, now);
    if (atomic_load(&engine->news))
        engine_take_news(engine, now);
    p4reduce_error error;
    if (engine->host != NULL && !leader_turn(engine, now, &error))
        engine_fail(engine, &error);
    // What has arrived needs not be sent again, so the timers come after it.
    engine->wet_turns = dry ? 0 : engine->wet_turns + 1;
    if (dry || engine->wet_turns > MOST_WET_TURNS) {
        p4reduce_worker_tick(engine->worker, now);
        check_time_limit(engine, now);
    }
    if (!engine_send_packets(engine, &error))
        engine_fail(engine, &error);
    if (engine->worker->failure.status != P4REDUCE_OK)
        engine_fail(engine, &engine->worker->failure);
    if (engine->holding.holds)
        holding_tell(engine);
    return dry && !engine->must_stop;
}

struct rest engine_rest(p4reduce_engine *engine, double limit) {
    engine_let_answers_gather(engine);
    struct rest rest = {
        .descriptors = {{.fd = engine->link->socket,
                         .events = (short)(engine->link->full ? POLLIN | POLLOUT : POLLIN)},
                        {.fd = engine->wake, .events = POLLIN},
                        {.fd = -1}},
        .due = fmin(limit, p4reduce_worker_deadline(engine->worker)),
    };
    if (engine->oldest != NULL)
        rest.due = fmin(rest.due, engine->oldest_since + engine->oldest->timeout);
    if (engine->host != NULL)
        leader_rest(engine, &rest);
    engine->look_due = rest.due;
    return rest;
}

bool engine_sleep(struct rest *rest) {
    struct timespec patience;
    if (!isinf(rest->due))
        patience = as_timespec(fmax(0, fmin(rest->due - clock_now(), 3600)));
    return ppoll(rest->descriptors, 3, isinf(rest->due) ? NULL : &patience, NULL) > 0 &&
           rest->descriptors[0].revents & POLLERR;
}

void engine_take_error(p4reduce_engine *engine) {
    // Reading the error clears it; a ring is read without asking the kernel, which could tell it otherwise.
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(engine->link->socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
        engine->link->trouble = error;
}
