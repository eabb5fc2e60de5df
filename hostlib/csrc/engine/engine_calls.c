// SPDX-License-Identifier: Apache-2.0
// What any thread may ask of an engine, besides operations.
#include "engine/engine_asking.h"
#include "engine/engine_driving.h"
#include "engine/engine_team.h"

#include "base/structures.h"
#include "intranode/host.h"
#include "intranode/local_pieces.h"

#include <stdio.h>
#include <unistd.h>

void p4reduce_fail(p4reduce_engine *engine, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    engine_fail_with(engine, &error, false);
}

void p4reduce_abort(p4reduce_engine *engine, p4reduce_status status, int32_t rank, const char *message) {
    p4reduce_error error;
    error_fill(&error, status == P4REDUCE_MISMATCH ? status : P4REDUCE_ABORTED, "%s", message);
    error.rank = rank;
    engine_fail_with(engine, &error, false);
}

void p4reduce_counted(p4reduce_engine *engine, uint32_t half, uint32_t seq, const char *message) {
    p4reduce_engine *carrier = team_find(engine, &half);
    pthread_mutex_lock(&carrier->lock);
    carrier->told_of = (struct counted){.news = true, .half = half, .seq = seq};
    snprintf(carrier->told_of.message, sizeof carrier->told_of.message, "%s", message);
    driving_wake(carrier);
    pthread_mutex_unlock(&carrier->lock);
}

p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_status status = error_out(error, engine_failure(engine));
    pthread_mutex_unlock(&engine->lock);
    return status;
}

int32_t p4reduce_unanswered(p4reduce_engine *engine) {
    return team_look(engine).unanswered;
}

void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", team_look(engine).progress);
}

void p4reduce_awaited(p4reduce_engine *engine, uint32_t awaited[8]) {
    const struct snapshot snapshot = team_look(engine);
    memcpy(awaited, snapshot.awaited, sizeof snapshot.awaited);
}

void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", team_look(engine).link);
}

void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats) {
    const struct snapshot snapshot = team_look(engine);
    structure_out(stats, &snapshot.stats, sizeof snapshot.stats);
}

void p4reduce_close(p4reduce_engine *engine) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_CLOSED, "the engine is closed");
    team_close(engine, &error);
    engine_fail_with(engine, &error, true);
    pthread_mutex_lock(&engine->lock);
    while (!engine->stopped)
        pthread_cond_wait(&engine->changed, &engine->lock);
    const bool join = !engine->joined;
    engine->joined = true;
    pthread_mutex_unlock(&engine->lock);
    if (!join)
        return;
    pthread_join(engine->thread, NULL);
    pthread_mutex_lock(&engine->lock);
    if (engine->link != NULL)
        engine->link->free(engine->link); // the socket is the caller's again
    engine->link = NULL;
    if (engine->host != NULL)
        host_leave(engine->host);
    if (engine->local != NULL)
        segment_close(&engine->local->segment);
    close(engine->wake);
    engine->wake = -1;
    pthread_mutex_unlock(&engine->lock);
}
