// SPDX-License-Identifier: Apache-2.0
#include "protocol/packet.h"

struct layout layout_of(unsigned lanes, unsigned block_size) {
    struct layout layout = {.lanes = lanes, .block_size = block_size};
    layout.bare_length = AGGREGATION_SIZE + KEY_SIZE * (size_t)lanes;
    layout.lane_length = VALUE_SIZE * (size_t)block_size;
    layout.largest_length = layout.bare_length + lanes * layout.lane_length;
    return layout;
}

bool packet_decode(const struct layout *layout, const uint8_t *payload, size_t length, struct packet *packet) {
    if (length < layout->bare_length || version_of(payload) != PROTOCOL_VERSION)
        return false;
    packet->op = (uint8_t)op_of(payload);
    packet->active = payload[AGGREGATION_ACTIVE];
    packet->present = payload[AGGREGATION_PRESENT];
    packet->worker = payload[AGGREGATION_WORKER];
    packet->job = load_16(payload + AGGREGATION_JOB);
    packet->generation = load_16(payload + AGGREGATION_GENERATION);
    packet->slot = load_16(payload + AGGREGATION_SLOT);
    packet->seq = load_32(payload + AGGREGATION_SEQ);
    packet->fingerprint = load_32(payload + AGGREGATION_FINGERPRINT);
    packet->keys = payload + AGGREGATION_SIZE;
    packet->values = payload + layout->bare_length;
    return packet->op >= OP_DATA && packet->op <= OP_HELLO && packet->active >> layout->lanes == 0 &&
           (packet->present & ~packet->active) == 0 &&
           length == layout->bare_length + lanes_in(packet->present) * layout->lane_length;
}

void packet_address(uint8_t *payload, enum op op, uint16_t job, uint16_t generation, uint8_t worker) {
    payload[AGGREGATION_VERSION] = version_and_op(op);
    payload[AGGREGATION_WORKER] = worker;
    store_16(payload + AGGREGATION_JOB, job);
    store_16(payload + AGGREGATION_GENERATION, generation);
}

void packet_round(uint8_t *payload, uint8_t active, uint8_t present, uint16_t slot, uint32_t seq,
                  uint32_t fingerprint) {
    payload[AGGREGATION_ACTIVE] = active;
    payload[AGGREGATION_PRESENT] = present;
    store_16(payload + AGGREGATION_SLOT, slot);
    store_32(payload + AGGREGATION_SEQ, seq);
    store_32(payload + AGGREGATION_FINGERPRINT, fingerprint);
}
