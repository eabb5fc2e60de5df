// SPDX-License-Identifier: Apache-2.0
// Other processes' regions that this rank has mapped, so that each is mapped once.
#ifndef P4REDUCE_LOCAL_MAPPINGS_H
#define P4REDUCE_LOCAL_MAPPINGS_H

#include "local_regions.h"

#include <stddef.h>

struct mapping {
    int32_t pid;
    struct region region; // its offset is 0
    uint8_t *base;
    uint64_t used; // when it last was, in calls
};

struct mappings {
    struct mapping *all;
    size_t count, room;
    uint64_t calls;
};

// Where the region of a process is in this one, which uses `size` bytes at its offset. NULL with errno where it cannot be mapped. What regions of that process
// have been freed meanwhile is unmapped.
uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size);

void mappings_close(struct mappings *mappings);

#endif
