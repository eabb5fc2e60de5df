// SPDX-License-Identifier: Apache-2.0
#include "engine/lifecycle.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/inflight.h"
#include "engine/progress.h"

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void copy_text(char *to, size_t room, const char *from, const char *otherwise) {
    snprintf(to, room, "%s", from != NULL ? from : otherwise);
}

p4reduce_engine *engine_make(const struct engine_ops *ops, const p4reduce_options *options, p4reduce_error *error) {
    p4reduce_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    engine->ops = ops;
    engine->failure = engine->external_failure = (p4reduce_error){.size = sizeof engine->failure, .rank = -1};
    engine->heard_at = -(double)INFINITY;
    engine->progress.held = true; // by the thread, from before it runs
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &attributes);
    pthread_cond_init(&engine->reportable, &attributes);
    pthread_cond_init(&engine->progress.released, &attributes);
    pthread_condattr_destroy(&attributes);
    engine->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    copy_text(engine->switch_address, sizeof engine->switch_address, options->switch_address, "an unnamed address");
    copy_text(engine->local_address, sizeof engine->local_address, options->local_address, "here");
    return engine;
}

static void *run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // the mode that numbers need; this thread has inherited that of its creator
    progress_run(engine);
    engine_handle_requests(engine, clock_now()); // the failure is set, so nothing is added to the inbox any more
    pthread_mutex_lock(&engine->lock);
    engine_take_snapshot(engine, clock_now(), &engine->snapshot);
    engine->answered = engine->asked;
    engine->stopped = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_cond_broadcast(&engine->reportable);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

bool engine_start(p4reduce_engine *engine, const char *name, p4reduce_error *error) {
    if (engine->wake < 0) {
        error_tell(error, P4REDUCE_SYSTEM, "no eventfd: errno %d", errno);
        return false;
    }
    // The new thread inherits this mask: signals are for the program's own threads.
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

void engine_destroy(p4reduce_engine *engine) {
    if (engine->next_shard != NULL)
        engine_destroy(engine->next_shard);
    while (engine->unreported.head != NULL) {
        p4reduce_operation *operation = engine->unreported.head;
        engine->unreported.head = operation->next_unreported;
        free(operation);
    }
    if (!engine->joined)
        engine->ops->close(engine);
    if (engine->wake >= 0)
        close(engine->wake);
    pthread_cond_destroy(&engine->changed);
    pthread_cond_destroy(&engine->reportable);
    pthread_cond_destroy(&engine->progress.released);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}
