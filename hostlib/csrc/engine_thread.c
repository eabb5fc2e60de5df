// SPDX-License-Identifier: Apache-2.0
#include "engine_thread.h"

#include "clock.h"
#include "engine_packets.h"
#include "structures.h"

#include <fenv.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_WET_TURNS = 64 }; // so that a flood of packets cannot keep the engine from its timers
static const double SILENCE_S = 3;

// What the operations are waiting for, in words, as engine.py says it.
static void describe_wait(const p4reduce_engine *engine, double now, char *text, size_t room) {
    struct quiet quiet = {engine->switch_address, engine->heard_at, engine->link->trouble};
    if (engine->link->quietest != NULL)
        quiet = engine->link->quietest(engine->link);
    const double since = quiet.heard_at > engine->oldest_since ? quiet.heard_at : engine->oldest_since;
    const double silence = now - since;
    if (quiet.heard_at < engine->oldest_since || silence > SILENCE_S) {
        char hint[64] = "";
        if (quiet.trouble)
            snprintf(hint, sizeof hint, " (%s)", strerror(quiet.trouble));
        snprintf(text, room,
                 "the switch at %s has not answered for %.1f s%s: is it running, does the network lead there from %s, "
                 "does it still know the job, has a rank gone ahead of the others?",
                 quiet.address, silence, hint, engine->local_address);
        return;
    }
    char ranks[5 * MAX_RANKS + 8] = "results";
    uint32_t awaited[8];
    if (p4reduce_worker_awaited(engine->worker, awaited)) {
        size_t used = 0;
        unsigned count = 0;
        for (unsigned rank = 0; rank < MAX_RANKS; rank++)
            if (awaited[rank / 32] >> rank % 32 & 1)
                used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u", count++ ? ", " : "ranks ", rank);
        if (count == 1) // "rank 3"
            memmove(ranks + 4, ranks + 5, used - 4);
    }
    snprintf(text, room, "waiting for %s; last answer of the switch at %s: %.1f s ago", ranks, quiet.address, silence);
}

// Operations.

// Under the lock: the first failure stays.
static void set_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    if (engine->failure.status == P4REDUCE_OK)
        engine->failure = *error;
}

void engine_ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    p4reduce_engine *engine = operation->engine;
    const double now = clock_now();
    *(operation->older ? &operation->older->newer : &engine->oldest) = operation->newer;
    *(operation->newer ? &operation->newer->older : &engine->newest) = operation->older;
    if (operation->older == NULL)
        engine->oldest_since = now;
    if (engine->oldest == NULL)
        engine->seconds += now - engine->busy_since;

    void (*on_end)(void *, const p4reduce_error *) = operation->on_end;
    void *own_context = operation->context;
    p4reduce_error copy;
    if (error != NULL)
        copy = *error;
    pthread_mutex_lock(&engine->lock);
    if (error != NULL) {
        set_failure(engine, error); // before its caller learns of it, who may call again at once
        operation->error = *error;
    }
    operation->ended = true;
    if (operation->collected)
        operation_push(&engine->told, operation);
    const bool forgotten = !operation->collected && !operation->held;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (forgotten)
        free(operation);
    if (on_end != NULL)
        on_end(own_context, error != NULL ? &copy : NULL);
}

static void begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    if (engine->oldest == NULL) {
        engine->oldest_since = engine->busy_since = now;
        if (engine->link->expect != NULL)
            engine->link->expect(engine->link, operation->task->blocks / engine->membership.lanes);
    }
    operation->newer = NULL;
    operation->older = engine->newest;
    *(engine->newest ? &engine->newest->newer : &engine->oldest) = operation;
    engine->newest = operation;
    struct task *task = operation->task;
    operation->task = NULL;
    worker_submit(engine->worker, task, now);
}

// Other threads.

void engine_take_snapshot(p4reduce_engine *engine, double now) {
    struct snapshot *snapshot = &engine->snapshot;
    snapshot->stats = engine->worker->stats;
    snapshot->stats.seconds = engine->seconds;
    describe_wait(engine, now, snapshot->progress, sizeof snapshot->progress);
    engine->link->describe(engine->link, snapshot->link, sizeof snapshot->link);
    snapshot->unanswered = p4reduce_worker_unanswered(engine->worker, now, SILENCE_S);
}

// What other threads want of this one.
static void take_news(p4reduce_engine *engine, double now) {
    uint64_t count;
    ssize_t got = read(engine->wake, &count, sizeof count);
    (void)got;
    atomic_store(&engine->news, false);
    pthread_mutex_lock(&engine->lock);
    const struct counted *counted = &engine->told_of;
    if (counted->news && p4reduce_worker_is_impossible(engine->worker, counted->half, counted->seq))
        error_fill(&engine->outside, P4REDUCE_MISMATCH, "%s", counted->message);
    engine->told_of.news = false;
    if (engine->outside.status != P4REDUCE_OK)
        set_failure(engine, &engine->outside);
    const p4reduce_error failure = engine->failure;
    engine->must_stop = engine->closing;
    if (failure.status != P4REDUCE_OK) {
        pthread_mutex_unlock(&engine->lock);
        worker_fail(engine->worker, &failure);
        pthread_mutex_lock(&engine->lock);
    }
    p4reduce_operation *operation;
    while ((operation = operation_pop(&engine->inbox)) != NULL) {
        pthread_mutex_unlock(&engine->lock);
        begin(engine, operation, now);
        pthread_mutex_lock(&engine->lock);
    }
    if (engine->answered != engine->asked) {
        engine_take_snapshot(engine, now);
        engine->answered = engine->asked;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
}

static void fail_here(p4reduce_engine *engine, const p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    set_failure(engine, error);
    const p4reduce_error failure = engine->failure;
    pthread_mutex_unlock(&engine->lock);
    worker_fail(engine->worker, &failure);
}

static void check_time_limit(p4reduce_engine *engine, double now) {
    const p4reduce_operation *oldest = engine->oldest;
    if (oldest == NULL || now - engine->oldest_since < oldest->timeout)
        return;
    char wait[TEXT_BYTES];
    describe_wait(engine, now, wait, sizeof wait);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", oldest->name, oldest->timeout, wait);
    p4reduce_worker_awaited(engine->worker, error.awaited);
    fail_here(engine, &error);
}

// The loop.

static void wait_for_work(p4reduce_engine *engine) {
    struct pollfd descriptors[] = {
        {.fd = engine->link->socket, .events = (short)(engine->link->full ? POLLIN | POLLOUT : POLLIN)},
        {.fd = engine->wake, .events = POLLIN},
    };
    double due = p4reduce_worker_deadline(engine->worker);
    if (engine->oldest != NULL)
        due = fmin(due, engine->oldest_since + engine->oldest->timeout);
    struct timespec patience;
    if (!isinf(due))
        patience = as_timespec(fmax(0, fmin(due - clock_now(), 3600)));
    if (ppoll(descriptors, 2, isinf(due) ? NULL : &patience, NULL) > 0 && descriptors[0].revents & POLLERR) {
        // Reading the error clears it; a ring is read without asking the kernel, which could tell it otherwise.
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(engine->link->socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
            engine->link->trouble = error;
    }
}

static void turn(p4reduce_engine *engine) {
    const bool dry = engine_receive_packets(engine);
    const double now = clock_now();
    if (atomic_load(&engine->news))
        take_news(engine, now);
    // What has arrived needs not be sent again, so the timers come after it.
    engine->wet_turns = dry ? 0 : engine->wet_turns + 1;
    if (dry || engine->wet_turns > MOST_WET_TURNS) {
        p4reduce_worker_tick(engine->worker, now);
        check_time_limit(engine, now);
    }
    p4reduce_error error;
    if (!engine_send_packets(engine, &error))
        fail_here(engine, &error);
    if (engine->worker->failure.status != P4REDUCE_OK)
        fail_here(engine, &engine->worker->failure);
    if (dry && !engine->must_stop) {
        engine_let_answers_gather(engine);
        wait_for_work(engine);
    }
}

void *engine_run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // as the numbers need it, whatever the thread that made this one has set
    while (!engine->must_stop)
        turn(engine);
    // The failure is set, so nothing was added to the inbox after the last look into it.
    take_news(engine, clock_now());
    pthread_mutex_lock(&engine->lock);
    engine_take_snapshot(engine, clock_now());
    engine->answered = engine->asked;
    engine->stopped = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}
