// SPDX-License-Identifier: Apache-2.0
// The cache of other processes' regions that this rank has mapped. Only the engine's driver uses it.
#ifndef P4REDUCE_MAPPINGS_H
#define P4REDUCE_MAPPINGS_H

#include "shm/regions.h"

#include <stddef.h>

// A region of another process, mapped at `base`.
struct mapping {
    int32_t pid;
    struct region region; // with the offset of the tensor for which it was first mapped
    uint8_t *base;
    uint64_t used; // the operation that last used it
};

enum { MOST_MAPPINGS = 4096 }; // the kernel allows a process about 65,000

struct mappings {
    struct mapping all[MOST_MAPPINGS];
    size_t count;
    size_t look_at; // the count at which freed regions are looked for again
    uint64_t operations;
};

// Begins another operation. Mappings that were found for earlier operations are no longer in use.
void mappings_begin(struct mappings *mappings);

// Returns the address of another process's region in this one, and maps it if necessary. This process will use `size`
// bytes at the region's offset. The result is valid until the next mappings_begin. Returns NULL if the region cannot be
// mapped. Some calls also unmap regions that were freed.
uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size);

// Unmaps all regions.
void mappings_close(struct mappings *mappings);

#endif
