// SPDX-License-Identifier: Apache-2.0
#include "slots.h"

#include <sys/mman.h>

#include "wire/bytes.h"

bool slots_create(struct slots *slots, const struct layout *layout) {
    slots->layout = *layout;
    slots->stride = ALIGNMENT + layout->lanes * lane_length(layout);
    slots->memory_size = layout->halves * slots->stride;
    slots->add_values = sums_choose();
    void *memory = mmap(NULL, slots->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    madvise(memory, slots->memory_size, MADV_HUGEPAGE);
    slots->memory = memory;
    return true;
}

void slots_destroy(struct slots *slots) {
    if (slots->memory != NULL)
        munmap(slots->memory, slots->memory_size);
    slots->memory = NULL;
}

static void start_lanes(const struct slots *slots, struct half *half, const struct contribution *data) {
    size_t length = lane_length(&slots->layout);
    const uint8_t *values = data->values;
    for (unsigned lane = 0; lane < slots->layout.lanes; lane++) {
        if ((data->active >> lane & 1) == 0)
            continue;
        uint8_t *sums = half_lane(slots, half, lane);
        if (data->present >> lane & 1) {
            memcpy(sums, values, length);
            values += length;
        } else {
            memset(sums, 0, length);
        }
    }
}

static void add_lanes(const struct slots *slots, struct half *half, const struct contribution *data) {
    size_t length = lane_length(&slots->layout);
    if (data->present == all_lanes(&slots->layout)) {
        slots->add_values(half_lane(slots, half, 0), data->values, slots->layout.lanes * length);
        return;
    }
    const uint8_t *values = data->values;
    for (unsigned lane = 0; lane < slots->layout.lanes; lane++) {
        if ((data->present >> lane & 1) == 0)
            continue;
        slots->add_values(half_lane(slots, half, lane), values, length);
        values += length;
    }
}

bool half_apply(const struct slots *slots, struct half *half, const struct contribution *data, enum outcome outcome) {
    uint8_t *keys = half->keys;
    if (outcome == OUTCOME_STARTED || outcome == OUTCOME_STORED) {
        if (outcome == OUTCOME_STARTED) {
            half->seq = data->seq;
            half->bitmap = data->worker_bit;
            half->fingerprint = data->fingerprint;
            half->envoy = data->worker;
            half->present = (uint8_t)data->present;
            half->marked = false;
        } else {
            half->bitmap = data->full_bitmap;
        }
        memcpy(keys, data->keys, keys_length(&slots->layout));
        start_lanes(slots, half, data);
    } else {
        half->bitmap |= data->worker_bit;
        half->envoy = data->worker;
        half->present |= (uint8_t)data->present;
        for (size_t at = 0; at < keys_length(&slots->layout); at += KEY_SIZE) {
            uint32_t key = load_32(data->keys + at);
            if (key < load_32(keys + at))
                store_32(keys + at, key);
        }
        add_lanes(slots, half, data);
    }
    half->marked |= data->marked;
    return half->bitmap == data->full_bitmap;
}
