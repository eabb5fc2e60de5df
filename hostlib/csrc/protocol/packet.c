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
    if (length < layout->bare_length)
        return false;
    *packet = (struct packet){
        .header = header_read(payload),
        .keys = payload + AGGREGATION_SIZE,
        .values = payload + layout->bare_length,
    };
    const struct header *header = &packet->header;
    return header->version == PROTOCOL_VERSION && header->op >= OP_DATA && header->op <= OP_HELLO &&
           header->active >> layout->lanes == 0 && (header->present & ~header->active) == 0 &&
           length == layout->bare_length + lanes_in(header->present) * layout->lane_length;
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
