// SPDX-License-Identifier: Apache-2.0
#include "local_mappings.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MOST_MAPPINGS = 4096 }; // the kernel lets a process have some 65,000

static void drop(struct mappings *mappings, size_t index) {
    struct mapping *mapping = &mappings->all[index];
    munmap(mapping->base, mapping->region.size);
    *mapping = mappings->all[--mappings->count];
}

static void drop_freed(struct mappings *mappings, int32_t pid) {
    for (size_t i = mappings->count; i-- > 0;) {
        const struct mapping *mapping = &mappings->all[i];
        if (mapping->pid == pid && !region_is_there(pid, mapping->region.file, mapping->region.inode))
            drop(mappings, i);
    }
}

static void drop_oldest(struct mappings *mappings) {
    size_t oldest = 0;
    for (size_t i = 1; i < mappings->count; i++)
        if (mappings->all[i].used < mappings->all[oldest].used)
            oldest = i;
    drop(mappings, oldest);
}

static bool make_room(struct mappings *mappings) {
    if (mappings->count == MOST_MAPPINGS)
        drop_oldest(mappings);
    if (mappings->count < mappings->room)
        return true;
    const size_t room = mappings->room ? 2 * mappings->room : 16;
    struct mapping *all = realloc(mappings->all, room * sizeof *all);
    if (all == NULL)
        return false;
    mappings->all = all;
    mappings->room = room;
    return true;
}

uint8_t *mappings_find(struct mappings *mappings, int32_t pid, const struct region *region, size_t size) {
    mappings->calls++;
    for (size_t i = 0; i < mappings->count; i++) {
        struct mapping *mapping = &mappings->all[i];
        if (mapping->pid == pid && mapping->region.number == region->number) {
            mapping->used = mappings->calls;
            return mapping->base;
        }
    }
    drop_freed(mappings, pid);
    if (!make_room(mappings)) {
        errno = ENOMEM;
        return NULL;
    }
    uint8_t *base = region_map(pid, region, size);
    if (base != NULL) {
        mappings->all[mappings->count] =
            (struct mapping){.pid = pid, .region = *region, .base = base, .used = mappings->calls};
        mappings->all[mappings->count++].region.offset = 0;
    }
    return base;
}

void mappings_close(struct mappings *mappings) {
    while (mappings->count > 0)
        drop(mappings, mappings->count - 1);
    free(mappings->all);
    *mappings = (struct mappings){.all = NULL};
}
