// SPDX-License-Identifier: Apache-2.0
#include "protocol/worker.h"

#include "base/align.h"
#include "base/awaited.h"
#include "base/membership.h"
#include "base/structures.h"
#include "protocol/job_errors.h"

#include <inttypes.h>
#include <stdlib.h>

enum { VALUES_ALIGNMENT = 64 };
static const double MIN_SCAN_BACKOFF_S = 20e-6, MAX_SCAN_BACKOFF_S = 1e-3;

// Tasks.

static void forget_task(p4reduce_worker *worker, struct task *task) {
    *(task->previous ? &task->previous->next : &worker->oldest) = task->next;
    *(task->next ? &task->next->previous : &worker->newest) = task->previous;
}

static void end_task(struct task *task, const p4reduce_error *error) {
    void (*on_end)(void *, const p4reduce_error *) = task->request.on_end;
    void *context = task->request.context;
    task_free(task);
    if (on_end != NULL)
        on_end(context, error);
}

// Ends all operations with `error`. `insist`: whether packets without a RESULT are still sent again.
static void end(p4reduce_worker *worker, const p4reduce_error *error, bool insist) {
    if (worker->failure.status != P4REDUCE_OK)
        return;
    worker->failure = *error;
    struct task *task = worker->oldest;
    worker->oldest = worker->newest = NULL;
    worker->waiting = 0;
    worker->scan_at = NEVER;
    for (uint32_t index = 0; index < worker->membership.slots; index++)
        worker->slots[index].task = NULL;
    recovery_end(&worker->recovery, insist);
    while (task != NULL) {
        struct task *next = task->next;
        end_task(task, &worker->failure);
        task = next;
    }
}

// Sends the packet of the round, unless the slot is suspended or repeats the round before.
static void send_packet(p4reduce_worker *worker, struct slot *slot, double now) {
    if (!slot->suspended && !slot->repeating)
        recovery_send(&worker->recovery, slot, now);
}

// Sends the packet of the round that has begun, or lets the slot wait for the scan.
static void send_round(p4reduce_worker *worker, struct slot *slot, double now) {
    bool complete = rounds_complete(&worker->rounds, slot);
    if (!complete && worker->waiting == 0 && scanning_may_go_on(slot->task, slot->index)) { // slots that wait are first
        worker->scanned += scanning_more(slot->task, slot->index);
        complete = rounds_complete(&worker->rounds, slot);
    }
    if (complete) {
        send_packet(worker, slot, now);
    } else {
        worker->waiting++;
        worker->scan_at = now;
    }
}

// Scans for a waiting slot until its packet can be sent, at most `budget` blocks and a piece, and only as far as
// co-located ranks have scanned. Returns the rest of the budget.
static uint32_t scan_for(p4reduce_worker *worker, struct slot *slot, uint32_t budget, double now) {
    bool complete;
    while (!(complete = rounds_complete(&worker->rounds, slot)) && budget > 0 &&
           scanning_may_go_on(slot->task, slot->index)) {
        const uint32_t blocks = scanning_more(slot->task, slot->index);
        worker->scanned += blocks;
        budget -= blocks < budget ? blocks : budget;
    }
    if (complete) {
        worker->waiting--;
        send_packet(worker, slot, now);
    }
    return budget;
}

// Continues the scan, in the order of tasks and then of slots. All ranks have this order, so the first slots are soon
// ready at each of them, and do not wait for other ranks.
static void scan(p4reduce_worker *worker, double now) {
    const uint32_t waited = worker->waiting;
    uint32_t budget = SCAN_BLOCKS;
    for (struct task *task = worker->oldest; task != NULL && worker->waiting > 0; task = task->next)
        for (uint32_t index = 0; index < task->slots; index++)
            if (worker->slots[index].task == task && worker->slots[index].unknown)
                budget = scan_for(worker, &worker->slots[index], budget, now);
    // If nothing was scanned, this rank waits for co-located ranks. It polls them, less and less often.
    const bool stuck = budget == SCAN_BLOCKS && worker->waiting == waited;
    worker->scan_backoff = stuck ? fmin(fmax(2 * worker->scan_backoff, MIN_SCAN_BACKOFF_S), MAX_SCAN_BACKOFF_S) : 0;
    worker->scan_at = worker->waiting > 0 ? now + worker->scan_backoff : NEVER;
}

// Begins the slot's next task, the first from `task` on that uses this slot, if there is one.
static void begin(p4reduce_worker *worker, struct slot *slot, struct task *task, double now) {
    while (task != NULL && slot->index >= task->slots)
        task = task->next;
    slot->task = task;
    if (task == NULL)
        return;
    rounds_announce(&worker->rounds, slot, task);
    send_round(worker, slot, now);
}

static void finished(p4reduce_worker *worker, struct slot *slot, double now) {
    struct task *task = slot->task;
    if (!task_finish(task)) {
        p4reduce_error error;
        job_error_altered(&worker->membership, task, &error);
        end(worker, &error, true);
        return;
    }
    begin(worker, slot, task->next, now);
    if (--task->slots_left == 0) {
        forget_task(worker, task);
        worker->stats.operations++;
        worker->stats.blocks_skipped += task->scanning.zeros;
        end_task(task, NULL);
    }
}

// Answers.

static void take_result(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, bool marked,
                        double now) {
    const bool plausible = rounds_plausible(&worker->rounds, slot, packet);
    if (!plausible || !rounds_is_result(slot, packet)) {
        worker->stats.foreign++;
        if (!plausible && slot->transmissions > 1) { // otherwise it may have been corrupted on its way
            p4reduce_error error;
            job_error_implausible(&worker->membership, packet, &error);
            end(worker, &error, true);
        }
        return;
    }
    recovery_on_result(&worker->recovery, slot, packet->header.worker == worker->rounds.worker, marked, now);
    if (rounds_take_result(&worker->rounds, slot, packet))
        send_round(worker, slot, now);
    else
        finished(worker, slot, now);
}

// Takes the RESULT of a round whose sums this rank has already. The slot goes on with its own round.
static void take_repeated(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, bool marked,
                          double now) {
    recovery_on_result(&worker->recovery, slot, packet->header.worker == worker->rounds.worker, marked, now);
    slot->repeating = false;
    if (slot->packet.length > 0)
        recovery_send(&worker->recovery, slot, now);
}

// Takes a RESULT or a STATUS.
static void take_answer(p4reduce_worker *worker, const struct packet *packet, bool marked, double now) {
    const uint32_t index = packet->header.slot >> 1;
    if (index >= worker->assigned || (packet->header.slot & 1) != (packet->header.seq & 1)) {
        worker->stats.foreign++;
        return;
    }
    if (index >= worker->membership.slots) {
        worker->stats.stale++;
        return;
    }
    struct slot *slot = &worker->slots[index];
    const uint32_t seq = slot_outgoing_seq(slot);
    if (packet->header.seq != seq)
        recovery_on_late_answer(slot, packet->header.seq);
    if (worker->failure.status != P4REDUCE_OK || !slot_in_network(slot) || packet->header.seq != seq)
        worker->stats.stale++;
    else if (packet->header.fingerprint != slot_outgoing_fingerprint(slot))
        worker->stats.foreign++;
    else if (packet->header.op == OP_STATUS)
        recovery_on_status(&worker->recovery, slot, packet_key(packet, 0),
                           packet->header.worker == worker->rounds.worker, marked, now);
    else if (slot->repeating)
        take_repeated(worker, slot, packet, marked, now);
    else
        take_result(worker, slot, packet, marked, now);
}

static void take_mismatch(p4reduce_worker *worker, const struct packet *packet) {
    if (worker->failure.status != P4REDUCE_OK)
        return;
    p4reduce_error error;
    const uint32_t index = packet->header.slot >> 1;
    const struct slot *slot = index < worker->membership.slots ? &worker->slots[index] : NULL;
    job_error_mismatch(&worker->membership, packet, worker->oldest, slot, &error);
    // The switch sends an ERROR only for packets that differ, and this rank does not know whose do. So all ranks go on
    // retransmitting: otherwise a rank whose ERROR was lost would wait for ever.
    end(worker, &error, true);
}

static void take_abort(p4reduce_worker *worker, const struct packet *packet) {
    p4reduce_error error;
    job_error_aborted(&worker->membership, packet, &error);
    end(worker, &error, false);
}

// Calls of the engine.

void worker_submit(p4reduce_worker *worker, struct task *task, double now) {
    if (worker->failure.status != P4REDUCE_OK) {
        end_task(task, &worker->failure);
        return;
    }
    const uint32_t seed = task->numbers.seed;
    task_identify(task, worker->counter++, worker->membership.rank);
    if (worker->membership.sharing)
        task->numbers.seed = seed; // the task is a part of a request, whose seed it keeps
    if (task->slots == 0) {        // other workers have all slots that it needs
        end_task(task, NULL);
        return;
    }
    task->previous = worker->newest;
    *(worker->newest ? &worker->newest->next : &worker->oldest) = task;
    worker->newest = task;
    for (unsigned index = 0; index < task->slots; index++)
        if (worker->slots[index].task == NULL)
            begin(worker, &worker->slots[index], task, now);
}

void worker_fail(p4reduce_worker *worker, const p4reduce_error *error) {
    end(worker, error, false);
}

void worker_expect(const p4reduce_worker *worker, const uint8_t *payload, size_t length) {
    if (length < worker->rounds.layout.bare_length)
        return;
    const uint32_t index = load_16(payload + AGGREGATION_SLOT) >> 1;
    if (index < worker->membership.slots)
        rounds_expect(&worker->rounds, &worker->slots[index], payload + AGGREGATION_SIZE);
}

void worker_receive(p4reduce_worker *worker, const void *payload, size_t length, bool marked, double now) {
    worker->stats.packets_received++;
    worker->stats.bytes_received += length;
    struct packet packet;
    if (!packet_decode(&worker->rounds.layout, payload, length, &packet) || packet.header.job != worker->membership.job)
        worker->stats.foreign++;
    else if (packet.header.generation != worker->membership.generation)
        worker->stats.stale++;
    else if (packet.header.op == OP_RESULT || packet.header.op == OP_STATUS)
        take_answer(worker, &packet, marked, now);
    else if (packet.header.op == OP_ERROR)
        take_mismatch(worker, &packet);
    else if (packet.header.op == OP_ABORT && packet_abort_secret(&packet) == worker->membership.abort_secret)
        take_abort(worker, &packet);
    else
        worker->stats.foreign++;
}

void p4reduce_worker_receive(p4reduce_worker *worker, const void *payload, size_t length, double now) {
    worker_receive(worker, payload, length, false, now);
}

void p4reduce_worker_receive_marked(p4reduce_worker *worker, const void *payload, size_t length, double now) {
    worker_receive(worker, payload, length, true, now);
}

void p4reduce_worker_tick(p4reduce_worker *worker, double now) {
    recovery_tick(&worker->recovery, now);
    if (now >= worker->scan_at)
        scan(worker, now);
}

double p4reduce_worker_deadline(const p4reduce_worker *worker) {
    return fmin(recovery_deadline(&worker->recovery), worker->scan_at);
}

size_t p4reduce_worker_take(p4reduce_worker *worker, p4reduce_payload *payloads, size_t room) {
    struct sending *sending = &worker->recovery.sending;
    const uint32_t count = sending->queued < room ? sending->queued : (uint32_t)room;
    for (uint32_t i = 0; i < count; i++) {
        const struct datagram *packet = slot_outgoing(sending->outbox[i]);
        payloads[i] = (p4reduce_payload){packet->payload, packet->length};
    }
    sending_sent(sending, count);
    return count;
}

p4reduce_status p4reduce_worker_submit(p4reduce_worker *worker, const p4reduce_request *request, double now,
                                       p4reduce_error *error) {
    p4reduce_error refusal;
    struct task *task = task_new(&worker->membership, request, true, &refusal);
    if (task == NULL)
        return error_out(error, &refusal);
    worker_submit(worker, task, now);
    return P4REDUCE_OK;
}

// Adds all ranks that share a stream with this leader.
static void add_ranks(const p4reduce_membership *m, uint32_t awaited[AWAITED_WORDS], unsigned leader) {
    for (unsigned rank = 0; rank < m->world_size; rank++)
        if (membership_beside(m, rank, leader))
            awaited_add(awaited, rank);
}

int p4reduce_worker_awaited(const p4reduce_worker *worker, uint32_t awaited[AWAITED_WORDS]) {
    const p4reduce_membership *m = &worker->membership;
    const unsigned workers = membership_workers(m);
    const uint32_t here = UINT32_MAX >> (32 - workers);
    uint32_t missing = 0;
    bool asked = false;
    for (uint32_t index = 0; index < m->slots; index++) {
        const struct slot *slot = &worker->slots[index];
        if (slot_counted(slot)) {
            missing |= here & ~slot->counted;
            asked = true;
        }
    }
    memset(awaited, 0, AWAITED_WORDS * sizeof *awaited);
    for (unsigned index = 0; index < workers; index++)
        if (missing >> index & 1)
            add_ranks(m, awaited, membership_rank(m, index));
    if (missing || !asked || m->peer_count == 0)
        return missing != 0;
    bool is_here[MAX_RANKS] = {false}, elsewhere = false; // is_here: by the numbers of membership_host
    for (uint32_t index = 0; index < m->peer_count; index++)
        is_here[membership_host(m, m->peers[index])] = true;
    for (unsigned rank = 0; rank < m->world_size; rank++)
        if (!is_here[membership_host(m, rank)]) {
            awaited_add(awaited, rank);
            elsewhere = true;
        }
    return elsewhere;
}

int32_t p4reduce_worker_unanswered(const p4reduce_worker *worker, double now, double timeout) {
    const struct slot *oldest = NULL;
    for (uint32_t index = 0; index < worker->membership.slots; index++) {
        const struct slot *slot = &worker->slots[index];
        if (slot_was_sent_again(slot) && (oldest == NULL || slot->last_answer < oldest->last_answer))
            oldest = slot;
    }
    if (oldest == NULL || now - oldest->last_answer < timeout)
        return -1;
    return (int32_t)(oldest->index << 1 | (slot_outgoing_seq(oldest) & 1));
}

int p4reduce_worker_is_impossible(const p4reduce_worker *worker, uint32_t half, uint32_t seq) {
    const uint32_t index = half >> 1;
    // Round numbers wrap around. As at switches, a round is later if it is up to 2^31 rounds ahead.
    return index < worker->membership.slots && (int32_t)(worker->slots[index].seq - seq) < -1;
}

int p4reduce_worker_idle(const p4reduce_worker *worker) {
    return worker->oldest == NULL;
}

uint32_t p4reduce_worker_next_first_seq(const p4reduce_worker *worker) {
    const uint32_t first = worker->slots[0].seq;
    int32_t furthest = 0;
    for (uint32_t index = 1; index < worker->membership.slots; index++) {
        const int32_t further = (int32_t)(worker->slots[index].seq - first);
        furthest = further > furthest ? further : furthest;
    }
    return (first + (uint32_t)furthest + 1) & ~UINT32_C(1);
}

// Puts all slots at the job's first round.
static void set_out(p4reduce_worker *worker) {
    const p4reduce_membership *m = &worker->membership;
    for (uint32_t index = 0; index < m->slots; index++) {
        struct slot *slot = &worker->slots[index];
        *slot = (struct slot){.index = index,
                              .seq = m->first_seq,
                              .packet = {.payload = slot->packet.payload},
                              .previous = {.payload = slot->previous.payload}};
    }
    worker->rounds = rounds_of(m, &worker->stats);
    recovery_begin_anew(&worker->recovery, m->slots);
}

p4reduce_status p4reduce_worker_begin_anew(p4reduce_worker *worker, uint32_t slots, uint32_t first_seq,
                                           p4reduce_error *error) {
    const uint32_t least = p4reduce_worker_next_first_seq(worker);
    if (worker->oldest != NULL)
        return error_tell(error, P4REDUCE_INVALID,
                          "slots can change only between two operations, and one is under way");
    if (slots == 0 || slots > worker->assigned)
        return error_tell(error, P4REDUCE_INVALID,
                          "slots are %" PRIu32 ": accepted are 1 to %" PRIu32 ", as many as were assigned", slots,
                          worker->assigned);
    if (first_seq % 2 || (int32_t)(first_seq - least) < 0)
        return error_tell(error, P4REDUCE_INVALID,
                          "first_seq is %" PRIu32 ": accepted are even numbers that do not come before %" PRIu32,
                          first_seq, least);
    worker->membership.slots = slots;
    worker->membership.first_seq = first_seq;
    set_out(worker);
    return P4REDUCE_OK;
}

p4reduce_status p4reduce_worker_set_aggregators(p4reduce_worker *worker, uint32_t aggregators, p4reduce_error *error) {
    if (aggregators == 0 || aggregators > MAX_AGGREGATORS)
        return error_tell(error, P4REDUCE_INVALID, "aggregators are %" PRIu32 ": accepted are 1 to %d", aggregators,
                          MAX_AGGREGATORS);
    if (worker->counter > 0)
        return error_tell(error, P4REDUCE_INVALID,
                          "aggregators are %" PRIu32 " after an operation: accepted before the first one", aggregators);
    worker->recovery.aggregators = aggregators;
    set_out(worker);
    return P4REDUCE_OK;
}

// Suspending and rewinding the slots of an aggregator: those with the numbers aggregator, aggregator + aggregators, ...

uint32_t worker_slots_at(const p4reduce_worker *worker, uint32_t aggregator) {
    const uint32_t slots = worker->membership.slots;
    return aggregator < slots ? (slots - aggregator - 1) / worker->recovery.aggregators + 1 : 0;
}

// Returns an aggregator's slot with the number `i` there.
static struct slot *slot_at(const p4reduce_worker *worker, uint32_t aggregator, uint32_t i) {
    return &worker->slots[aggregator + i * worker->recovery.aggregators];
}

size_t p4reduce_worker_suspend(p4reduce_worker *worker, uint32_t aggregator, uint32_t *rounds, size_t room) {
    const uint32_t count = worker_slots_at(worker, aggregator);
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = slot_at(worker, aggregator, i);
        slot->suspended = true;
        recovery_withdraw(&worker->recovery, slot);
        if (i < room)
            rounds[i] = slot->seq;
    }
    return count;
}

p4reduce_status p4reduce_worker_rewind(p4reduce_worker *worker, uint32_t aggregator, const uint32_t *rounds,
                                       size_t count, double now, p4reduce_error *error) {
    if (count != worker_slots_at(worker, aggregator))
        return error_tell(error, P4REDUCE_INVALID,
                          "rounds are %zu: accepted are %" PRIu32 ", one for each of the slots", count,
                          worker_slots_at(worker, aggregator));
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = slot_at(worker, aggregator, i);
        if (rounds[i] != slot->seq && (rounds[i] != slot->seq - 1 || slot->previous.length == 0))
            return error_tell(error, P4REDUCE_INVALID,
                              "the round of slot %" PRIu32 " is %" PRIu32 ": accepted are %" PRIu32
                              " and the round before, if the slot has sent a packet in it",
                              slot->index, rounds[i], slot->seq);
    }
    recovery_begin_path(&worker->recovery, now);
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = slot_at(worker, aggregator, i);
        recovery_withdraw(&worker->recovery, slot);
        slot->suspended = false;
        slot->repeating = rounds[i] != slot->seq;
        if (slot_outgoing(slot)->length > 0 && worker->failure.status == P4REDUCE_OK)
            recovery_send(&worker->recovery, slot, now);
    }
    return P4REDUCE_OK;
}

void p4reduce_worker_fail(p4reduce_worker *worker, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    worker_fail(worker, &error);
}

p4reduce_status p4reduce_worker_failure(const p4reduce_worker *worker, p4reduce_error *error) {
    return error_out(error, &worker->failure);
}

uint64_t p4reduce_worker_scanned(const p4reduce_worker *worker) {
    return worker->scanned;
}

void p4reduce_worker_stats(const p4reduce_worker *worker, p4reduce_stats *stats) {
    structure_out(stats, &worker->stats, sizeof worker->stats);
}

size_t p4reduce_worker_hello(const p4reduce_worker *worker, uint64_t nonce, uint8_t *payload, size_t room) {
    const p4reduce_membership *m = &worker->membership;
    if (room < worker->rounds.layout.bare_length)
        return 0;
    packet_address(payload, OP_HELLO, (uint16_t)m->job, (uint16_t)m->generation,
                   (uint8_t)(m->rank < NOBODY ? m->rank : NOBODY));
    packet_round(payload, 0, 0, 0, 0, (uint32_t)(nonce >> 32));
    for (unsigned lane = 0; lane < worker->rounds.layout.lanes; lane++)
        packet_set_key(payload, lane, lane == 0 ? (uint32_t)nonce : NO_KEY);
    return worker->rounds.layout.bare_length;
}

// Opening and closing.

static p4reduce_status take_timing(struct timer *timer, const p4reduce_timing *theirs, p4reduce_error *error) {
    p4reduce_timing t = {.initial = 0.02, .margin = 0.0005, .ceiling = 1.0, .poll = 0.25};
    if (theirs != NULL && !structure_in(&t, sizeof t, theirs, "timing", error))
        return P4REDUCE_INVALID;
    if (!(0 < t.margin && t.margin <= t.initial && t.initial <= t.ceiling && t.margin <= t.poll && t.poll <= t.ceiling))
        return error_tell(error, P4REDUCE_INVALID,
                          "timing has initial %g, margin %g, ceiling %g, poll %g: accepted is 0 < margin <= initial <= "
                          "ceiling and margin <= poll <= ceiling",
                          t.initial, t.margin, t.ceiling, t.poll);
    *timer = (struct timer){.initial = t.initial, .margin = t.margin, .ceiling = t.ceiling, .poll = t.poll};
    timer_restart(timer);
    return P4REDUCE_OK;
}

// Allocates the slots, each with room for two packets. Values are aligned. Before them is room for the aggregation
// header and for the headers of frames.
static bool make_slots(p4reduce_worker *worker, struct timer timer) {
    const uint32_t slots = worker->membership.slots;
    const struct layout *layout = &worker->rounds.layout;
    const size_t before = align_up(HEADROOM_BYTES + layout->bare_length, VALUES_ALIGNMENT);
    const size_t values = layout->lanes * layout->lane_length;
    const size_t stride = align_up(before + values, VALUES_ALIGNMENT);
    worker->slots = calloc(slots, sizeof *worker->slots);
    worker->payloads = aligned_alloc(VALUES_ALIGNMENT, 2 * slots * stride);
    if (worker->slots == NULL || worker->payloads == NULL)
        return false;
    uint8_t *payload = worker->payloads + before - layout->bare_length;
    for (uint32_t index = 0; index < slots; index++, payload += 2 * stride) {
        const p4reduce_membership *m = &worker->membership;
        packet_address(payload, OP_DATA, (uint16_t)m->job, (uint16_t)m->generation, worker->rounds.worker);
        packet_address(payload + stride, OP_DATA, (uint16_t)m->job, (uint16_t)m->generation, worker->rounds.worker);
        worker->slots[index].packet.payload = payload;
        worker->slots[index].previous.payload = payload + stride;
    }
    if (!recovery_open(&worker->recovery, worker->slots, slots, membership_streams(&worker->membership), timer,
                       &worker->stats))
        return false;
    set_out(worker);
    return true;
}

p4reduce_worker *p4reduce_worker_new(const p4reduce_membership *membership, const p4reduce_timing *timing,
                                     p4reduce_error *error) {
    p4reduce_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        goto no_memory;
    struct timer timer;
    if (!structure_in(&worker->membership, sizeof worker->membership, membership, "membership", error) ||
        membership_check(&worker->membership, error) != P4REDUCE_OK ||
        take_timing(&timer, timing, error) != P4REDUCE_OK)
        goto failed;
    worker->rounds = rounds_of(&worker->membership, &worker->stats);
    worker->stats.size = sizeof worker->stats;
    worker->failure.size = sizeof worker->failure;
    worker->failure.rank = -1;
    worker->scan_at = NEVER;
    worker->assigned = worker->membership.slots;
    if (!make_slots(worker, timer))
        goto no_memory;
    return worker;

no_memory:
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for a worker");
failed:
    p4reduce_worker_free(worker);
    return NULL;
}

void p4reduce_worker_free(p4reduce_worker *worker) {
    if (worker == NULL)
        return;
    while (worker->oldest != NULL) {
        struct task *task = worker->oldest;
        worker->oldest = task->next;
        task_free(task);
    }
    recovery_close(&worker->recovery);
    free(worker->slots);
    free(worker->payloads);
    free(worker);
}
