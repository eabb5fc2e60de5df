// SPDX-License-Identifier: Apache-2.0
// Other processes' regions that this rank has mapped, so that each is mapped once.
#ifndef P4REDUCE_LOCAL_MAPPINGS_H
#define P4REDUCE_LOCAL_MAPPINGS_H

#include "shm/local_regions.h"

#include <stddef.h>

struct mapping {
    int32_t pid;
    struct region region; // its offset is 0
    uint8_t *base;
    uint64_t used; // in which operation it last was
};

struct mappings {
    struct mapping *all;
    size_t count, room;
    size_t look_at; // how many there are when it is looked again which have been freed
    uint64_t operations;
};

// Another operation begins: what was found for those before is not in use any more.
void mappings_begin(struct mappings *mappings);

// Where the region of a process is in this one, which uses `size` bytes at its offset. NULL with errno where it cannot be
// mapped. Now and then, what regions have been freed meanwhile is unmapped.
uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size);

void mappings_close(struct mappings *mappings);

#endif
