// SPDX-License-Identifier: Apache-2.0
#include "base/awaited.h"
#include "base/clock.h"
#include "engine/inflight.h"
#include "intranode/calls.h"
#include "intranode/host.h"
#include "intranode/wakeup.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK_VALUES = 16384 }; // values scanned and copied in one step
// Age from which the leader's report of the ranks it waits for is out of date. The leader reports at least every
// second, and the report's time is in whole seconds.
static const double REPORT_VALID_S = 3;

// Texts.

// Returns whether a rank of this host delays the part that this rank waits for. The leader scans as it sends. It is not
// to blame if it cannot begin the part because a follower has not taken the sums in its buffer.
static bool lags(const struct host *host, uint32_t index) {
    const uint64_t number = host->taken;
    const bool has_called = calls_get(&host->node, index, number + 1) != NULL;
    if (index > 0)
        return !has_called ||
               atomic_load(&host_call(host, number, index)->scanned) < host->parts[number % BUFFERS].blocks;
    for (uint32_t other = 1; !has_called && other < host->node.segment.count; other++)
        if (parts_lack_buffer(host, number, other))
            return false;
    return !has_called;
}

// Describes the ranks of this host that lag, or else those that the leader waits for.
static void describe_wait(const p4reduce_engine *engine, char *text, size_t room, uint32_t awaited[AWAITED_WORDS]) {
    const struct host *host = host_of(engine);
    const struct segment_head *head = segment_head(&host->node.segment);
    const bool has_report = engine->oldest != NULL && clock_now() - atomic_load(&head->awaited_at) < REPORT_VALID_S;
    char ranks[AWAITED_TEXT_BYTES];
    memset(awaited, 0, AWAITED_WORDS * sizeof *awaited);
    if (has_report && atomic_load(&head->paused)) {
        snprintf(text, room,
                 "the controller has paused operations to change the job's slots, as it told rank %u, "
                 "which sends for this host",
                 host->node.segment.ranks[0]);
        return;
    }
    for (uint32_t index = 0; host->taken < host->begun && index < host->node.segment.count; index++)
        if (lags(host, index))
            awaited_add(awaited, host->node.segment.ranks[index]);
    if (awaited_ranks(awaited, ranks)) {
        snprintf(text, room, "waiting for %s on this host", ranks);
        return;
    }
    const uint32_t leader = host->node.segment.ranks[0];
    for (unsigned i = 0; has_report && i < AWAITED_WORDS; i++)
        awaited[i] = atomic_load(&head->awaited[i]);
    if (engine->oldest == NULL)
        snprintf(text, room, "waiting for no rank");
    else if (awaited_ranks(awaited, ranks))
        snprintf(text, room, "waiting for %s, like rank %u, which sends for this host", ranks, leader);
    else {
        awaited_add(awaited, leader);
        snprintf(text, room, "waiting for rank %u, which sends for this host", leader);
    }
}

static void take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    (void)now;
    snapshot->stats = host_of(engine)->node.stats;
    describe_wait(engine, snapshot->progress, sizeof snapshot->progress, snapshot->awaited);
    snprintf(snapshot->link, sizeof snapshot->link, "the stream of rank %u, one of its host",
             host_of(engine)->node.segment.ranks[0]);
}

// Ends.

static void fail(p4reduce_engine *engine, const p4reduce_error *error) {
    struct host *host = host_of(engine);
    const p4reduce_error failure = calls_set_failure(&host->node, error);
    parts_fail(host, &failure);
}

static void begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    (void)now;
    parts_enqueue(host_of(engine), operation);
}

// Returns whether the sums of the next part to take are there.
static bool has_sums(const struct host *host) {
    return host->taken < host->begun && atomic_load(host_ended(host, host->taken)) == host->taken + 1;
}

// A follower's share of a part: it scans its values, copies the non-zero blocks for the leader, and computes its result
// from the sums.

// Copies blocks that are not zero.
static void copy_nonzero(struct host *host, const struct part *part, uint64_t block, size_t blocks,
                         const uint8_t *exponents) {
    const struct task *task = part->task;
    const size_t value_bytes = task->numbers.value_bytes, block_bytes = task->block_size * value_bytes;
    uint8_t *copies = host_copies(host, part->number, host->node.segment.index) + block * block_bytes;
    size_t copied = 0;
    for (size_t i = 0; i < blocks; i++)
        if (exponents[i] != BLOCK_ZERO) {
            size_t count;
            const void *values = task_block(task, block + i, &count);
            memcpy(copies + i * block_bytes, values, count * value_bytes);
            copied++;
        }
    host->node.stats.blocks_sent += copied;
    host->node.stats.blocks_skipped += blocks - copied;
}

// Scans and copies the next blocks of the part begun last. A small part has no more than these. `scanned` has release
// order only: the leader polls it, and is not woken.
static void scan(struct host *host) {
    const struct part *part = parts_get(host, host->begun - 1);
    const struct task *task = part->task;
    const uint32_t index = host->node.segment.index;
    const size_t blocks = (size_t)min_of(part->blocks - host->scanned, CHUNK_VALUES / task->block_size);
    uint8_t *exponents = buffers_exponents(&host->staging, part->number, index) + host->scanned;
    if (blocks > 0)
        task_scan(task, host->scanned, blocks, exponents);
    copy_nonzero(host, part, host->scanned, blocks, exponents);
    host->scanned += blocks;
    atomic_store_explicit(&host_call(host, part->number, index)->scanned, host->scanned, memory_order_release);
}

// Computes this rank's result from the sums of a part that has ended.
static void compute_result(struct host *host, const struct part *part) {
    const struct task *task = part->task;
    const struct numbers *numbers = &task->numbers;
    const uint8_t *own = buffers_exponents(&host->staging, part->number, host->node.segment.index);
    const uint8_t *agreed = buffers_agreed(&host->staging, part->number);
    const uint8_t *sums = buffers_sums(&host->staging, part->number);
    const size_t stride = numbers_words(numbers, task->block_size) * sizeof(uint32_t);
    _Alignas(LINE_BYTES) uint8_t words[MOST_BLOCK_BYTES];
    for (uint64_t block = 0; block < part->blocks; block++) {
        if (agreed[block] == BLOCK_ZERO)
            continue;
        host->node.stats.blocks_received++;
        size_t count;
        void *values = task_block(task, block, &count);
        if (task->request.residual != NULL && own[block] != BLOCK_ZERO)
            task_quantise(task, block, agreed[block], words);
        if (!task->request.read_only)
            numbers_dequantise(numbers, sums + block * stride, count, agreed[block], values);
    }
}

// Steps. Each returns whether there was something to do. A turn takes one step, in this order: sums first, because they
// free buffers for all; then the scan of the part begun last; then a new part.

static bool take_sums(p4reduce_engine *engine) {
    struct host *host = host_of(engine);
    if (!has_sums(host))
        return false;
    struct part *part = parts_get(host, host->taken);
    compute_result(host, part);
    task_free(part->task);
    part->task = NULL;
    atomic_store(&segment_rank(&host->node.segment, host->node.segment.index)->taken, ++host->taken);
    wakeup_rank(&host->node, 0);
    parts_end(part);
    return true;
}

static bool begin_part(p4reduce_engine *engine) {
    struct host *host = host_of(engine);
    if (host->next == NULL || host->begun - host->taken == BUFFERS)
        return false;
    p4reduce_error error;
    const struct part *part = parts_next(host, &error);
    if (part == NULL) {
        fail(engine, &error);
        return true;
    }
    host->scanned = 0;
    scan(host); // before the announcement, so that a small part is completely scanned when the leader sees it
    calls_announce(&host->node, part->task, NULL, false);
    if (calls_have_all_come(&host->node, part->number + 1))
        wakeup_rank(&host->node, 0); // the leader can submit the part
    return true;
}

static bool scan_more(struct host *host) {
    if (host->begun == host->taken || host->scanned == parts_get(host, host->begun - 1)->blocks)
        return false;
    scan(host);
    return true;
}

static bool step(p4reduce_engine *engine, double now) {
    struct host *host = host_of(engine);
    p4reduce_error error;
    if (engine->oldest == NULL)
        return false;
    if (take_sums(engine))
        return true;
    if (calls_fail(&host->node, &error))
        fail(engine, &error);
    else if (engine_check_time_limit(engine, now))
        return scan_more(host) || begin_part(engine);
    return true;
}

// Waiting.

static bool has_work(const p4reduce_engine *engine) {
    const struct host *host = host_of(engine);
    p4reduce_error error;
    return engine->oldest != NULL && (has_sums(host) || calls_fail(&host->node, &error));
}

static struct wait_set wait(p4reduce_engine *engine, double limit) {
    struct host *host = host_of(engine);
    struct wait_set set = wakeup_announce_sleep(&host->node, fmin(limit, host_trim_due(host)));
    if (has_work(engine))
        set.deadline = 0;
    return set;
}

static bool turn(p4reduce_engine *engine) {
    const double now = clock_now();
    wakeup_receive(intranode_of(engine));
    if (atomic_load(&engine->requests_pending))
        engine_handle_requests(engine, now);
    host_trim(host_of(engine), now);
    return !step(engine, now) && !engine->must_stop;
}

const struct engine_ops follower_engine = {
    .turn = turn,
    .wait = wait,
    .begin = begin,
    .fail = fail,
    .snapshot = take_snapshot,
    .close = host_close,
};
