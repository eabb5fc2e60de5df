// SPDX-License-Identifier: Apache-2.0
// The build options of the compiled program, and the lengths in its packets that follow from them.
#ifndef NATIVE_LAYOUT_H
#define NATIVE_LAYOUT_H

#include <stddef.h>

#include "wire/headers.h"

struct layout {
    unsigned lanes;
    unsigned block_size; // values a block
    unsigned halves;     // of all slots
    unsigned cpu_port;
    unsigned max_growth; // bytes
};

static inline size_t lane_length(const struct layout *layout) {
    return VALUE_SIZE * (size_t)layout->block_size;
}

static inline size_t keys_length(const struct layout *layout) {
    return KEY_SIZE * (size_t)layout->lanes;
}

// Bytes of a payload without values.
static inline size_t bare_length(const struct layout *layout) {
    return AGGREGATION_SIZE + keys_length(layout);
}

static inline unsigned all_lanes(const struct layout *layout) {
    return (1U << layout->lanes) - 1;
}

#endif
