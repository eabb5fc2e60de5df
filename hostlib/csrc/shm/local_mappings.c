// SPDX-License-Identifier: Apache-2.0
#include "shm/local_mappings.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    MOST_MAPPINGS = 4096, // the kernel lets a process have some 65,000
    LOOK_SHARE = 8,       // of those that are left, as many as may be new before it is looked again which were freed
};

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
        if (!is_in_use(mappings, mapping) &&
            !region_is_there(mapping->pid, mapping->region.file, mapping->region.inode))
            drop(mappings, i);
    }
    mappings->look_at = mappings->count + mappings->count / LOOK_SHARE + 1;
}

// Any that is not in use. Not the oldest: where there are more than have room, and all are used in turn, that is the one
// which is needed next.
static void drop_some(struct mappings *mappings) {
    size_t some = (mappings->operations * UINT64_C(2654435761) >> 16) % mappings->count;
    while (is_in_use(mappings, &mappings->all[some]))
        some = (some + 1) % mappings->count;
    drop(mappings, some);
}

static bool make_room(struct mappings *mappings) {
    if (mappings->count == MOST_MAPPINGS)
        drop_some(mappings);
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
    if (!make_room(mappings)) {
        errno = ENOMEM;
        return NULL;
    }
    uint8_t *base = region_map(pid, region, size);
    if (base != NULL) {
        mappings->all[mappings->count] =
            (struct mapping){.pid = pid, .region = *region, .base = base, .used = mappings->operations};
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
