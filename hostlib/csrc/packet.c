// SPDX-License-Identifier: Apache-2.0
#include "packet.h"

struct layout layout_of(unsigned lanes, unsigned block_size) {
    struct layout layout = {.lanes = lanes, .block_size = block_size};
    layout.bare_length = HEADER_BYTES + 4 * (size_t)lanes;
    layout.lane_length = 4 * (size_t)block_size;
    layout.largest_length = layout.bare_length + lanes * layout.lane_length;
    return layout;
}

bool packet_decode(const struct layout *layout, const uint8_t *payload, size_t length, struct packet *packet) {
    if (length < layout->bare_length || payload[0] >> 4 != PROTOCOL_VERSION)
        return false;
    packet->op = payload[0] & 0xF;
    packet->active = payload[1];
    packet->present = payload[2];
    packet->worker = payload[3];
    packet->job = load_16(payload + 4);
    packet->generation = load_16(payload + 6);
    packet->slot = load_16(payload + SLOT_AT);
    packet->seq = load_32(payload + 10);
    packet->fingerprint = load_32(payload + 14);
    packet->keys = payload + HEADER_BYTES;
    packet->values = payload + layout->bare_length;
    return packet->op >= OP_DATA && packet->op <= OP_HELLO && packet->active >> layout->lanes == 0 &&
           (packet->present & ~packet->active) == 0 &&
           length == layout->bare_length + lanes_in(packet->present) * layout->lane_length;
}

void packet_address(uint8_t *payload, enum op op, uint16_t job, uint16_t generation, uint8_t worker) {
    payload[0] = (uint8_t)(PROTOCOL_VERSION << 4 | op);
    payload[3] = worker;
    store_16(payload + 4, job);
    store_16(payload + 6, generation);
}

void packet_round(uint8_t *payload, uint8_t active, uint8_t present, uint16_t slot, uint32_t seq,
                  uint32_t fingerprint) {
    payload[1] = active;
    payload[2] = present;
    store_16(payload + SLOT_AT, slot);
    store_32(payload + 10, seq);
    store_32(payload + 14, fingerprint);
}
