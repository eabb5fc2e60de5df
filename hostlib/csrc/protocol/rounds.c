// SPDX-License-Identifier: Apache-2.0
#include "protocol/rounds.h"

#include "base/membership.h"

struct rounds rounds_of(const p4reduce_membership *membership, p4reduce_stats *stats) {
    struct rounds rounds = {.membership = membership, .stats = stats, .worker = (uint8_t)membership_worker(membership)};
    rounds.layout = layout_of(membership->lanes, membership->block_size);
    rounds.streams = membership_all_slots(membership) * membership->lanes;
    rounds.first_stream = membership->first_slot * membership->lanes;
    rounds.max_absent_lanes = (unsigned)(MAX_GROWTH / rounds.layout.lane_length);
    return rounds;
}

// Returns a stream's number, counted from this worker's first.
static uint32_t stream_of(const struct rounds *rounds, const struct slot *slot, unsigned lane) {
    return slot->index * rounds->layout.lanes + lane;
}

static uint64_t block_of(const struct rounds *rounds, const struct slot *slot, unsigned lane, uint32_t key) {
    return (uint64_t)(key >> 8) * rounds->streams + rounds->first_stream + stream_of(rounds, slot, lane);
}

// Writes the packet's header, without its keys.
static void fill_packet(struct slot *slot, uint8_t present) {
    const uint32_t half = slot->index << 1 | (slot->seq & 1);
    slot->fingerprint = fingerprint_of_round(slot->task->fingerprint, slot->active);
    packet_round(slot->packet.payload, slot->active, present, (uint16_t)half, slot->seq, slot->fingerprint);
    slot->packet.present = present;
}

// Writes the sums of the round's lanes into the request's array.
static void take_values(const struct rounds *rounds, struct slot *slot, const uint8_t *wire) {
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        if (!(slot->active >> lane & 1))
            continue;
        const uint32_t key = slot->agreed[lane];
        const struct task *task = slot->task;
        const uint64_t block = block_of(rounds, slot, lane, key);
        size_t count;
        void *values = task_block(task, block, &count);
        if (task->colocated != NULL)
            colocated_store(task->colocated, block, 255 - (key & 255), wire, numbers_words(&task->numbers, count));
        if (!task->request.read_only || task->gather != NULL)
            numbers_dequantise(&task->numbers, wire, count, 255 - (key & 255), values);
        wire += rounds->layout.lane_length;
        rounds->stats->blocks_received++;
    }
}

bool rounds_plausible(const struct rounds *rounds, const struct slot *slot, const struct packet *packet) {
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        const uint32_t key = packet_key(packet, lane);
        if (key < slot->least[lane] || key > slot->announced[lane])
            return false;
        if (key != NO_KEY && block_of(rounds, slot, lane, key) >= slot->task->blocks)
            return false;
    }
    return true;
}

// Begins the round of the blocks that the keys name, in network order. Returns the lanes whose block is not zero here.
static uint8_t agree(const struct rounds *rounds, struct slot *slot, const uint8_t *keys) {
    uint8_t own = 0;
    slot->active = 0;
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        const uint32_t key = load_32(keys + KEY_SIZE * lane), announced = slot->announced[lane];
        slot->agreed[lane] = key;
        slot->least[lane] = key >= (NO_KEY & ~UINT32_C(0xFF)) ? NO_KEY : (key | 0xFF) + 1;
        if (key == NO_KEY)
            continue;
        slot->active |= (uint8_t)(1u << lane);
        if (key >> 8 == announced >> 8 && announced != NO_KEY) {
            own |= (uint8_t)(1u << lane);
            slot->sought[lane] = (key >> 8) + 1;
        }
    }
    slot->unknown = own;
    return own;
}

// Writes this rank's values into the packet. Returns the lanes that are then present.
static uint8_t contribute(const struct rounds *rounds, struct slot *slot, uint8_t own) {
    uint8_t present = own, absent = slot->active & (uint8_t)~own;
    while (lanes_in(absent) > rounds->max_absent_lanes) {
        uint8_t first = absent & (uint8_t)-absent; // zeros, so that the switch has room for the sums
        absent ^= first;
        present |= first;
    }
    uint8_t *wire = slot->packet.payload + rounds->layout.bare_length;
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        if (!(present >> lane & 1))
            continue;
        size_t words = 0;
        if (own >> lane & 1) {
            const uint32_t key = slot->agreed[lane];
            words = task_quantise(slot->task, block_of(rounds, slot, lane, key), 255 - (key & 255), wire);
        }
        memset(wire + 4 * words, 0, rounds->layout.lane_length - 4 * words);
        wire += rounds->layout.lane_length;
    }
    rounds->stats->blocks_sent += lanes_in(own);
    rounds->stats->blocks_filled += lanes_in(present ^ own);
    return present;
}

// Begins the only round of a small task of integers. It names all blocks, because there is no exponent to agree on.
static void name_all(const struct rounds *rounds, struct slot *slot) {
    struct task *task = slot->task;
    scanning_more(task, slot->index);
    uint8_t first[KEY_SIZE * MAX_LANES];
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        scanning_next_key(task, stream_of(rounds, slot, lane), &slot->sought[lane], &slot->announced[lane]);
        store_32(first + KEY_SIZE * lane, lane < task->blocks ? 0 : NO_KEY);
    }
    const uint8_t own = agree(rounds, slot, first);
    fill_packet(slot, contribute(rounds, slot, own));
}

void rounds_announce(const struct rounds *rounds, struct slot *slot, struct task *task) {
    slot->task = task;
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        slot->sought[lane] = 0;
        slot->least[lane] = 0;
    }
    if (task->at_once) {
        name_all(rounds, slot);
        return;
    }
    slot->unknown = (uint8_t)((1u << rounds->layout.lanes) - 1);
    slot->active = 0;
    fill_packet(slot, 0);
}

static void fetch(const struct task *task, uint64_t block) {
    size_t count;
    const uint8_t *values = task_block(task, block, &count);
    for (size_t at = 0; at < count * task->numbers.value_bytes; at += CACHE_LINE_BYTES)
        __builtin_prefetch(values + at);
}

void rounds_expect(const struct rounds *rounds, const struct slot *slot, const uint8_t *keys) {
    if (slot->task == NULL)
        return;
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++) {
        const uint32_t announced = slot->announced[lane];
        if (slot->active >> lane & 1)
            fetch(slot->task, block_of(rounds, slot, lane, slot->agreed[lane]));
        if (announced != NO_KEY && load_32(keys + KEY_SIZE * lane) >> 8 == announced >> 8) {
            fetch(slot->task, block_of(rounds, slot, lane, announced));
            scanning_expect(slot->task, stream_of(rounds, slot, lane), (announced >> 8) + 1);
        }
    }
}

bool rounds_is_result(const struct slot *slot, const struct packet *packet) {
    return packet->header.active == slot->active && packet->header.present == slot->active;
}

bool rounds_take_result(const struct rounds *rounds, struct slot *slot, const struct packet *packet) {
    take_values(rounds, slot, packet->values);
    slot->seq++;
    const struct datagram sent = slot->packet;
    slot->packet = (struct datagram){.payload = slot->previous.payload};
    slot->previous = sent;
    const uint8_t own = agree(rounds, slot, packet->keys);
    if (slot->active)
        fill_packet(slot, contribute(rounds, slot, own));
    return slot->active;
}

bool rounds_complete(const struct rounds *rounds, struct slot *slot) {
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++)
        if (slot->unknown >> lane & 1 &&
            scanning_next_key(slot->task, stream_of(rounds, slot, lane), &slot->sought[lane], &slot->announced[lane]))
            slot->unknown &= (uint8_t)~(1u << lane);
    if (slot->unknown)
        return false;
    for (unsigned lane = 0; lane < rounds->layout.lanes; lane++)
        packet_set_key(slot->packet.payload, lane, slot->announced[lane]);
    slot->packet.length =
        (uint32_t)(rounds->layout.bare_length + lanes_in(slot->packet.present) * rounds->layout.lane_length);
    return true;
}
