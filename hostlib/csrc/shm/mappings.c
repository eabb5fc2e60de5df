// SPDX-License-Identifier: Apache-2.0
#include "shm/mappings.h"

#include <sys/mman.h>

enum { LOOK_SHARE = 8 }; // count / LOOK_SHARE new mappings, after which freed regions are looked for

static void drop(struct mappings *mappings, size_t index) {
    struct mapping *mapping = &mappings->all[index];
    munmap(mapping->base, mapping->region.size);
    *mapping = mappings->all[--mappings->count];
}

static bool is_in_use(const struct mappings *mappings, const struct mapping *mapping) {
    return mapping->used == mappings->operations;
}

static void drop_freed(struct mappings *mappings) {
    if (mappings->count < mappings->look_at)
        return;
    for (size_t i = mappings->count; i-- > 0;) {
        const struct mapping *mapping = &mappings->all[i];
        if (!is_in_use(mappings, mapping) && !region_exists(mapping->pid, mapping->region.file, mapping->region.inode))
            drop(mappings, i);
    }
    mappings->look_at = mappings->count + mappings->count / LOOK_SHARE + 1;
}

// Drops any mapping that is not in use. It does not choose the oldest: if more regions than have room are used in turn,
// the oldest is needed next.
static void drop_some(struct mappings *mappings) {
    size_t some = (mappings->operations * UINT64_C(2654435761) >> 16) % mappings->count;
    while (is_in_use(mappings, &mappings->all[some]))
        some = (some + 1) % mappings->count;
    drop(mappings, some);
}

void mappings_begin(struct mappings *mappings) {
    mappings->operations++;
}

uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size) {
    for (size_t i = 0; i < mappings->count; i++) {
        struct mapping *mapping = &mappings->all[i];
        if (mapping->pid == pid && mapping->region.number == region->number) {
            mapping->used = mappings->operations;
            return mapping->base;
        }
    }
    drop_freed(mappings);
    if (mappings->count == MOST_MAPPINGS)
        drop_some(mappings);
    uint8_t *base = region_map(pid, region, size);
    if (base != NULL)
        mappings->all[mappings->count++] =
            (struct mapping){.pid = pid, .region = *region, .base = base, .used = mappings->operations};
    return base;
}

void mappings_close(struct mappings *mappings) {
    while (mappings->count > 0)
        drop(mappings, mappings->count - 1);
}
