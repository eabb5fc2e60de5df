// SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include "membership.h"
#include "sending.h"
#include "structures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { VALUES_ALIGNMENT = 64 };

// Rounds.

static void send_packet(p4reduce_worker *worker, struct slot *slot, uint8_t present, double now) {
    const uint32_t half = (uint32_t)(slot - worker->slots) << 1 | (slot->seq & 1);
    packet_round(slot->payload, slot->active, present, (uint16_t)half, slot->seq, slot->task->fingerprint);
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++)
        packet_set_key(slot->payload, lane, slot->announced[lane]);
    slot->present = present;
    slot->length = (uint32_t)(worker->layout.bare_length + slot_lanes(slot) * worker->layout.lane_length);
    slot->waiting = true;
    slot->transmissions = 0;
    slot->grouped = false;
    line_up(worker, slot, now);
}

static uint32_t stream_of(const p4reduce_worker *worker, const struct slot *slot, unsigned lane) {
    return (uint32_t)(slot - worker->slots) * worker->layout.lanes + lane;
}

// Begins the slot's next task, the first from `task` on that uses this slot, if there is one.
static void announce(p4reduce_worker *worker, struct slot *slot, struct task *task, double now) {
    while (task != NULL && (uint32_t)(slot - worker->slots) >= task->slots)
        task = task->next;
    slot->task = task;
    if (task == NULL)
        return;
    const p4reduce_membership *m = &worker->membership;
    packet_address(slot->payload, OP_DATA, (uint16_t)m->job, (uint16_t)m->generation, worker->index);
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++) {
        slot->announced[lane] = task_next_key(task, stream_of(worker, slot, lane), 0);
        slot->least[lane] = 0;
    }
    slot->active = 0;
    send_packet(worker, slot, 0, now);
}

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

static void finished(p4reduce_worker *worker, struct slot *slot, double now) {
    struct task *task = slot->task;
    announce(worker, slot, task->next, now);
    if (--task->slots_left == 0) {
        forget_task(worker, task);
        if (worker->oldest == NULL) {
            worker->earliest = NEVER;
            worker->released = false;
        }
        worker->stats.operations++;
        worker->stats.blocks_skipped += task->zeros;
        end_task(task, NULL);
    }
}

static uint64_t block_of(const p4reduce_worker *worker, const struct slot *slot, unsigned lane, uint32_t key) {
    return (uint64_t)(key >> 8) * worker->streams + stream_of(worker, slot, lane);
}

// Takes the sums of the round's lanes.
static void take_values(p4reduce_worker *worker, struct slot *slot, const uint8_t *wire) {
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++) {
        if (!(slot->active >> lane & 1))
            continue;
        const uint32_t key = slot->agreed[lane];
        size_t count;
        void *values = task_block(slot->task, block_of(worker, slot, lane, key), &count);
        numbers_dequantise(&slot->task->numbers, wire, count, 255 - (key & 255), values);
        wire += worker->layout.lane_length;
        worker->stats.blocks_received++;
    }
}

// Whether these can be minimums over workers of which this is one.
static bool plausible(const p4reduce_worker *worker, const struct slot *slot, const struct packet *packet) {
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++) {
        const uint32_t key = packet_key(packet, lane);
        if (key < slot->least[lane] || key > slot->announced[lane])
            return false;
        if (key != NO_KEY && block_of(worker, slot, lane, key) >= slot->task->blocks)
            return false;
    }
    return true;
}

// Begins the round of the blocks that the keys name. Returns the lanes whose block is not zero here.
static uint8_t agree(const p4reduce_worker *worker, struct slot *slot, const struct packet *packet) {
    uint8_t own = 0;
    slot->active = 0;
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++) {
        const uint32_t key = packet_key(packet, lane), announced = slot->announced[lane];
        slot->agreed[lane] = key;
        slot->least[lane] = key >= (NO_KEY & ~UINT32_C(0xFF)) ? NO_KEY : (key | 0xFF) + 1;
        if (key == NO_KEY)
            continue;
        slot->active |= (uint8_t)(1u << lane);
        if (key >> 8 == announced >> 8 && announced != NO_KEY) {
            own |= (uint8_t)(1u << lane);
            slot->announced[lane] = task_next_key(slot->task, stream_of(worker, slot, lane), (key >> 8) + 1);
        }
    }
    return own;
}

// Puts this rank's values into the packet. Returns the lanes that it then has.
static uint8_t contribute(p4reduce_worker *worker, struct slot *slot, uint8_t own) {
    uint8_t present = own, absent = slot->active & (uint8_t)~own;
    while (lanes_in(absent) > worker->max_absent_lanes) {
        uint8_t first = absent & (uint8_t)-absent; // zeros, so that the switch has room for the sums
        absent ^= first;
        present |= first;
    }
    uint8_t *wire = slot->payload + worker->layout.bare_length;
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++) {
        if (!(present >> lane & 1))
            continue;
        size_t count = 0;
        if (own >> lane & 1) {
            const uint32_t key = slot->agreed[lane];
            const void *values = task_block(slot->task, block_of(worker, slot, lane, key), &count);
            numbers_quantise(&slot->task->numbers, values, count, 255 - (key & 255), wire);
        }
        memset(wire + 4 * count, 0, worker->layout.lane_length - 4 * count);
        wire += worker->layout.lane_length;
    }
    worker->stats.blocks_sent += lanes_in(own);
    worker->stats.blocks_filled += lanes_in(present ^ own);
    return present;
}

static void take_result(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, double now) {
    if (packet->fingerprint != slot->task->fingerprint || packet->active != slot->active ||
        packet->present != slot->active || !plausible(worker, slot, packet)) {
        worker->stats.foreign++;
        return;
    }
    take_answer(worker, slot, packet, now);
    take_values(worker, slot, packet->values);
    slot->seq++;
    uint8_t own = agree(worker, slot, packet);
    if (slot->active)
        send_packet(worker, slot, contribute(worker, slot, own), now);
    else
        finished(worker, slot, now);
}

// Ends of the job.

// Fails everything. Packets that wait for answers are still sent, where `insist`.
static void end(p4reduce_worker *worker, const p4reduce_error *error, bool insist) {
    if (worker->failure.status != P4REDUCE_OK)
        return;
    worker->failure = *error;
    struct task *task = worker->oldest;
    worker->oldest = worker->newest = NULL;
    for (uint32_t index = 0; index < worker->membership.slots; index++) {
        worker->slots[index].task = NULL;
        worker->slots[index].waiting &= insist;
    }
    worker->polling = 0;
    if (!insist)
        worker->earliest = NEVER;
    while (task != NULL) {
        struct task *next = task->next;
        end_task(task, &worker->failure);
        task = next;
    }
}

static size_t describe_task(const struct task *task, const char *before, char *text, size_t room) {
    return (size_t)snprintf(text, room, "%soperation %" PRIu32 ", <%s of %" PRIu64 " %s>, has %08" PRIx32, before,
                            task->counter, task->reduce_op, task->request.count, task->dtype, task->fingerprint);
}

static void take_mismatch(p4reduce_worker *worker, const struct packet *packet) {
    if (worker->failure.status != P4REDUCE_OK)
        return;
    const uint32_t index = packet->slot >> 1, held = packet->fingerprint, other = packet_key(packet, 0);
    char here[400] = "";
    size_t used = 0;
    for (struct task *task = worker->oldest; task != NULL && used < sizeof here; task = task->next)
        if (task->fingerprint == held || task->fingerprint == other)
            used += describe_task(task, used ? ", " : "", here + used, sizeof here - used);
    if (!used && worker->oldest != NULL)
        used = describe_task(worker->oldest, "", here, sizeof here);
    char who[40] = "a rank at another switch";
    if (packet->worker < membership_workers(&worker->membership))
        snprintf(who, sizeof who, "rank %u", membership_rank(&worker->membership, packet->worker));
    p4reduce_error error;
    error_fill(&error, P4REDUCE_MISMATCH,
               "ranks call different operations: %s came with fingerprint %08" PRIx32
               ", those before it with %08" PRIx32 " (slot %" PRIu32 ", round %" PRIu32 "). On this rank, %" PRIu32
               ", %s. Check that all ranks call the same collectives in the same order, with the same number of "
               "elements, dtype and reduction",
               who, other, held, index, packet->seq, worker->membership.rank,
               used ? here : "no operation is under way");
    // Only packets that differ make the switch say so, and whose do is not known here. All go on, lest another rank whose
    // ERROR was lost waits for ever.
    end(worker, &error, true);
}

static void take_abort(p4reduce_worker *worker, const struct packet *packet) {
    const p4reduce_membership *m = &worker->membership;
    char why[64] = "the controller has ended it, and no rank is to blame";
    if (packet->worker != NOBODY)
        snprintf(why, sizeof why, packet->worker != m->rank ? "rank %u has left it" : "this rank, %u, has left it",
                 packet->worker);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_ABORTED, "job %" PRIu32 " was aborted: %s (reason %" PRIu32 ")", m->job, why,
               packet_key(packet, 0));
    error.rank = packet->worker != NOBODY ? packet->worker : -1;
    end(worker, &error, false);
}

// What the engine calls.

void worker_submit(p4reduce_worker *worker, struct task *task, double now) {
    if (worker->failure.status != P4REDUCE_OK) {
        end_task(task, &worker->failure);
        return;
    }
    task->counter = worker->counter++;
    task->fingerprint = fingerprint(task->counter, task->dtype, task->reduce_op, task->request.count);
    task->previous = worker->newest;
    *(worker->newest ? &worker->newest->next : &worker->oldest) = task;
    worker->newest = task;
    for (unsigned index = 0; index < task->slots; index++)
        if (worker->slots[index].task == NULL)
            announce(worker, &worker->slots[index], task, now);
}

void worker_fail(p4reduce_worker *worker, const p4reduce_error *error) {
    end(worker, error, false);
}

void p4reduce_worker_receive(p4reduce_worker *worker, const void *payload, size_t length, double now) {
    worker->stats.packets_received++;
    worker->stats.bytes_received += length;
    struct packet packet;
    if (!packet_decode(&worker->layout, payload, length, &packet) || packet.job != worker->membership.job) {
        worker->stats.foreign++;
    } else if (packet.generation != worker->membership.generation) {
        worker->stats.stale++;
    } else if (packet.op == OP_RESULT || packet.op == OP_STATUS) {
        const uint32_t index = packet.slot >> 1;
        if (index >= worker->membership.slots || (packet.slot & 1) != (packet.seq & 1)) {
            worker->stats.foreign++;
            return;
        }
        struct slot *slot = &worker->slots[index];
        if (worker->failure.status != P4REDUCE_OK || !under_way(slot) || packet.seq != slot->seq)
            worker->stats.stale++;
        else if (packet.op == OP_STATUS)
            take_status(worker, slot, &packet, now);
        else
            take_result(worker, slot, &packet, now);
    } else if (packet.op == OP_ERROR) {
        take_mismatch(worker, &packet);
    } else if (packet.op == OP_ABORT) {
        take_abort(worker, &packet);
    } else {
        worker->stats.foreign++;
    }
}

p4reduce_status p4reduce_worker_submit(p4reduce_worker *worker, const p4reduce_request *request, double now,
                                       p4reduce_error *error) {
    p4reduce_error refusal;
    struct task *task = task_new(&worker->membership, request, &refusal);
    if (task == NULL)
        return error_out(error, &refusal);
    worker_submit(worker, task, now);
    return P4REDUCE_OK;
}

static void add_rank(uint32_t awaited[8], unsigned rank) {
    awaited[rank / 32] |= UINT32_C(1) << rank % 32;
}

int p4reduce_worker_awaited(const p4reduce_worker *worker, uint32_t awaited[8]) {
    const p4reduce_membership *m = &worker->membership;
    const uint32_t here = UINT32_MAX >> (32 - membership_workers(m));
    uint32_t missing = 0;
    bool asked = false;
    for (uint32_t index = 0; index < m->slots; index++) {
        const struct slot *slot = &worker->slots[index];
        if (slot->waiting && slot->polling) {
            missing |= here & ~slot->seen;
            asked = true;
        }
    }
    memset(awaited, 0, 8 * sizeof *awaited);
    for (unsigned index = 0; index < membership_workers(m); index++)
        if (missing >> index & 1)
            add_rank(awaited, membership_rank(m, index));
    if (missing || !asked || m->peer_count == 0)
        return missing != 0;
    for (unsigned rank = 0; rank < m->world_size; rank++)
        if (memchr(m->peers, (int)rank, m->peer_count) == NULL)
            add_rank(awaited, rank);
    return m->peer_count < m->world_size;
}

int p4reduce_worker_idle(const p4reduce_worker *worker) {
    return worker->oldest == NULL;
}

void p4reduce_worker_fail(p4reduce_worker *worker, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    worker_fail(worker, &error);
}

p4reduce_status p4reduce_worker_failure(const p4reduce_worker *worker, p4reduce_error *error) {
    return error_out(error, &worker->failure);
}

void p4reduce_worker_stats(const p4reduce_worker *worker, p4reduce_stats *stats) {
    structure_out(stats, &worker->stats, sizeof worker->stats);
}

size_t p4reduce_worker_hello(const p4reduce_worker *worker, uint64_t nonce, uint8_t *payload, size_t room) {
    const p4reduce_membership *m = &worker->membership;
    if (room < worker->layout.bare_length)
        return 0;
    packet_address(payload, OP_HELLO, (uint16_t)m->job, (uint16_t)m->generation, (uint8_t)m->rank);
    packet_round(payload, 0, 0, 0, 0, (uint32_t)(nonce >> 32));
    for (unsigned lane = 0; lane < worker->layout.lanes; lane++)
        packet_set_key(payload, lane, lane == 0 ? (uint32_t)nonce : NO_KEY);
    return worker->layout.bare_length;
}

// Making one.

static p4reduce_status take_timing(struct timer *timer, const p4reduce_timing *theirs, p4reduce_error *error) {
    p4reduce_timing t = {.initial = 0.02, .margin = 0.01, .ceiling = 1.0, .poll = 0.25};
    if (theirs != NULL && !structure_in(&t, sizeof t, theirs))
        return error_tell(error, P4REDUCE_INVALID, "timing is not one that this version of the library understands");
    if (!(0 < t.margin && t.margin <= t.initial && t.initial <= t.ceiling && t.margin <= t.poll && t.poll <= t.ceiling))
        return error_tell(error, P4REDUCE_INVALID,
                          "timing has initial %g, margin %g, ceiling %g, poll %g: accepted is 0 < margin <= initial <= "
                          "ceiling and margin <= poll <= ceiling",
                          t.initial, t.margin, t.ceiling, t.poll);
    *timer = (struct timer){
        .initial = t.initial, .margin = t.margin, .ceiling = t.ceiling, .poll = t.poll, .timeout = t.initial};
    return P4REDUCE_OK;
}

p4reduce_worker *p4reduce_worker_new(const p4reduce_membership *membership, const p4reduce_timing *timing,
                                     p4reduce_error *error) {
    p4reduce_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        goto no_memory;
    if (!structure_in(&worker->membership, sizeof worker->membership, membership)) {
        error_tell(error, P4REDUCE_INVALID, "membership is not one that this version of the library understands");
        goto failed;
    }
    const p4reduce_membership *m = &worker->membership;
    if (membership_check(m, error) != P4REDUCE_OK || take_timing(&worker->timer, timing, error) != P4REDUCE_OK)
        goto failed;
    worker->index = (uint8_t)m->rank;
    for (uint32_t i = 0; i < m->peer_count; i++)
        if (m->peers[i] == m->rank)
            worker->index = (uint8_t)i;
    worker->layout = layout_of(m->lanes, m->block_size);
    worker->streams = m->slots * m->lanes;
    worker->max_absent_lanes = (unsigned)(MAX_GROWTH / worker->layout.lane_length);
    worker->earliest = NEVER;
    worker->pace = pace_new(m->slots);
    worker->progress_at = worker->answered_through = worker->held_until = -NEVER;
    worker->stats.size = sizeof worker->stats;
    worker->failure.size = sizeof worker->failure;
    worker->failure.rank = -1;

    // Values are aligned, and before them is room for the header and for those of frames.
    const size_t before =
        (HEADROOM_BYTES + worker->layout.bare_length + VALUES_ALIGNMENT - 1) / VALUES_ALIGNMENT * VALUES_ALIGNMENT;
    const size_t values = worker->layout.lanes * worker->layout.lane_length;
    const size_t stride = (before + values + VALUES_ALIGNMENT - 1) / VALUES_ALIGNMENT * VALUES_ALIGNMENT;
    worker->slots = calloc(m->slots, sizeof *worker->slots);
    worker->outbox = calloc(m->slots, sizeof *worker->outbox);
    worker->line = calloc(m->slots, sizeof *worker->line);
    worker->polled = calloc(m->slots, sizeof *worker->polled);
    worker->payloads = aligned_alloc(VALUES_ALIGNMENT, m->slots * stride);
    if (worker->slots == NULL || worker->outbox == NULL || worker->line == NULL || worker->polled == NULL ||
        worker->payloads == NULL)
        goto no_memory;
    for (uint32_t index = 0; index < m->slots; index++) {
        worker->slots[index].seq = m->first_seq;
        worker->slots[index].payload = worker->payloads + index * stride + before - worker->layout.bare_length;
    }
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
    free(worker->slots);
    free(worker->outbox);
    free(worker->line);
    free(worker->polled);
    free(worker->payloads);
    free(worker);
}
