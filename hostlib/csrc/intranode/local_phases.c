// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "engine/inflight.h"
#include "intranode/calls.h"
#include "intranode/local.h"
#include "intranode/wakeup.h"

// Requests of other threads, and failures.

bool local_may_continue(p4reduce_engine *engine) {
    const double now = clock_now();
    if (atomic_load(&engine->requests_pending))
        engine_handle_requests(engine, now);
    p4reduce_error error;
    if (engine->failure.status == P4REDUCE_OK && calls_differ(intranode_of(engine), &error))
        engine_set_failure(engine, &error);
    if (engine->failure.status == P4REDUCE_OK)
        engine_check_time_limit(engine, now);
    return engine->failure.status == P4REDUCE_OK;
}

bool local_no_rank_failed(p4reduce_engine *engine) {
    p4reduce_error error;
    if (!calls_have_failed(intranode_of(engine), &error))
        return true;
    engine_set_failure(engine, &error);
    return false;
}

// Waiting for the other ranks.

// Window w uses buffer w mod WINDOWS, as number w / WINDOWS from 0 on, and all ranks arrive once in each.
uint32_t local_expected_arrivals(const struct local *local, uint64_t window) {
    return (uint32_t)(local->ranks * (window / WINDOWS + 1));
}

// `arrived` counts over all windows that have used the buffer, so it is never reset and may wrap around. Each rank's
// increment has acquire and release order, and the increments are one release sequence: a rank that loads the full
// count sees all that every rank wrote before its own. `completed` only serves to report the ranks that are awaited.
void local_arrive(struct local *local, enum phase phase, uint64_t window) {
    struct window *head = local_window(local, window);
    struct rank_record *own = segment_rank(&local->node.segment, local->rank);
    atomic_store_explicit(&own->completed[phase], window + 1, memory_order_release);
    if (atomic_fetch_add(&head->arrived[phase], 1) + 1 != local_expected_arrivals(local, window))
        return;
    if (phase == REDUCED)
        atomic_store(&head->next_piece, 0); // for the buffer's next window, after all have gathered this one
    wakeup_all(&local->node);
}

bool local_have_all_arrived(const struct local *local, enum phase phase, uint64_t window) {
    const uint32_t seen = atomic_load(&local_window(local, window)->arrived[phase]);
    // The difference is signed, because `arrived` may wrap around.
    return (int32_t)(seen - local_expected_arrivals(local, window)) >= 0;
}
