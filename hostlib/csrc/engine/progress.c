// SPDX-License-Identifier: Apache-2.0
#include "engine/progress.h"

#include "base/clock.h"

#include <fenv.h>
#include <math.h>
#include <sys/socket.h>
#include <unistd.h>

// Time without a waiter after which the engine's thread waits for packets again. It bounds how long packets wait if the
// last waiter has left and no thread requests a wakeup.
static const double QUIET_S = 0.1;

// Sets `requests_pending`, and makes `wake` readable until the driver handles the requests. So it also wakes a driver
// that waits for packets.
static void notify_driver(p4reduce_engine *engine) {
    atomic_store(&engine->requests_pending, true);
    if (engine->notified)
        return;
    engine->notified = true;
    const uint64_t one = 1;
    const ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; // it fails only if the descriptor is readable anyway
}

void progress_clear_requests(p4reduce_engine *engine) {
    if (engine->notified) {
        uint64_t count;
        const ssize_t got = read(engine->wake, &count, sizeof count);
        (void)got;
        engine->notified = false;
    }
    atomic_store(&engine->requests_pending, false);
}

// Makes the engine's thread take the lock as soon as no other thread has it.
static void request_wakeup(p4reduce_engine *engine) {
    engine->progress.wakeup_requested = true;
    if (engine->progress.idle)
        pthread_cond_signal(&engine->progress.released);
    else
        notify_driver(engine);
}

void progress_wake(p4reduce_engine *engine) {
    if (engine->wake < 0)
        return; // closed
    atomic_store(&engine->requests_pending, true);
    if (engine->progress.held)
        notify_driver(engine);
    else
        request_wakeup(engine);
}

// Returns whether an operation with a callback is in flight or next, so that only the engine's thread may make
// progress.
static bool has_callbacks(const p4reduce_engine *engine) {
    const p4reduce_operation *next = engine->inbox.head;
    return engine->callbacks > 0 || (next != NULL && next->on_end != NULL);
}

bool progress_try_acquire(p4reduce_engine *engine) {
    struct progress_lock *progress = &engine->progress;
    if (progress->held || engine->stopped || engine->closing || has_callbacks(engine))
        return false;
    progress->held = progress->by_waiter = true;
    progress->callback_pending = false;
    progress->epoch++;
    return true;
}

// Waits, without the engine's lock. Returns whether the link's socket has an error.
static bool wait_for(struct wait_set *set) {
    struct timespec timeout;
    if (!isinf(set->deadline))
        timeout = as_timespec(fmax(0, fmin(set->deadline - clock_now(), 3600)));
    return ppoll(set->descriptors, 3, isinf(set->deadline) ? NULL : &timeout, NULL) > 0 &&
           set->descriptors[0].revents & POLLERR;
}

// Reads, and so clears, the socket's error. With a ring, no call of the kernel would report the error otherwise.
static void take_error(p4reduce_engine *engine, const struct wait_set *set) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(set->descriptors[0].fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0)
        engine->link->trouble = error;
}

void progress_until(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline) {
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    bool drained = engine->ops->turn(engine);
    while (!operation->ended && !engine->progress.callback_pending && !engine->must_stop && clock_now() < deadline) {
        if (drained) {
            struct wait_set set = engine->ops->wait(engine, deadline);
            if (wait_for(&set))
                take_error(engine, &set);
        }
        drained = engine->ops->turn(engine);
    }
    fesetenv(&callers);
}

void progress_release(p4reduce_engine *engine) {
    struct progress_lock *progress = &engine->progress;
    progress->held = progress->by_waiter = false;
    if (progress->wakeup_requested || engine->oldest != NULL || engine->inbox.head != NULL ||
        atomic_load(&engine->requests_pending) || engine->closing)
        request_wakeup(engine);
}

static void release(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->progress.held = false;
    pthread_mutex_unlock(&engine->lock);
}

// Takes the lock again. If waiters have held it since `epoch`, the event that woke this thread was theirs. Then it
// stays idle until its wakeup is requested, or until no waiter has come for QUIET_S. Returns the epoch for the next
// call.
static unsigned reacquire(p4reduce_engine *engine, unsigned epoch) {
    struct progress_lock *progress = &engine->progress;
    pthread_mutex_lock(&engine->lock);
    progress->idle = true;
    while (progress->held || (progress->epoch != epoch && !progress->wakeup_requested)) {
        epoch = progress->epoch;
        const struct timespec until = as_timespec(clock_now() + QUIET_S);
        pthread_cond_timedwait(&progress->released, &engine->lock, &until);
    }
    progress->idle = progress->wakeup_requested = false;
    progress->held = true;
    epoch = progress->epoch;
    pthread_mutex_unlock(&engine->lock);
    return epoch;
}

void progress_run(p4reduce_engine *engine) {
    unsigned epoch = 0;
    while (!engine->must_stop) {
        if (!engine->ops->turn(engine))
            continue;
        struct wait_set set = engine->ops->wait(engine, (double)INFINITY);
        release(engine);
        const bool error = wait_for(&set);
        epoch = reacquire(engine, epoch);
        if (error)
            take_error(engine, &set);
    }
}
