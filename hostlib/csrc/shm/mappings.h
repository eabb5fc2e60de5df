// SPDX-License-Identifier: Apache-2.0
// Other processes' regions that this rank has mapped, so that each is mapped once.
#ifndef P4REDUCE_MAPPINGS_H
#define P4REDUCE_MAPPINGS_H

#include "shm/regions.h"

#include <stddef.h>

struct mapping {
    int32_t pid;
    struct region region; // with the offset of the tensor that it was first mapped for
    uint8_t *base;
    uint64_t used; // in which operation it last was
};

enum { MOST_MAPPINGS = 4096 }; // the kernel lets a process have some 65,000

struct mappings {
    struct mapping all[MOST_MAPPINGS];
    size_t count;
    size_t look_at; // how many there are when it is looked again which have been freed
    uint64_t operations;
};

// Another operation begins: what was found for those before is not in use any more.
void mappings_begin(struct mappings *mappings);

// Where the region of a process is in this one, which uses `size` bytes at its offset. NULL where it cannot be mapped.
// Regions that have been freed meanwhile are unmapped now and then.
uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size);

void mappings_close(struct mappings *mappings);

#endif
