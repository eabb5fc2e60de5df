// SPDX-License-Identifier: Apache-2.0
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t planes_made;

struct plane *plane_create(const struct layout *layout) {
    struct plane *plane = calloc(1, sizeof *plane);
    if (plane == NULL)
        return NULL;
    plane->layout = *layout;
    // Different from the versions of all other planes, also of a freed one at the same address.
    plane->version = atomic_fetch_add(&planes_made, 1) << 32;
    bool made = slots_create(&plane->slots, layout);
    for (unsigned table = 0; table < TABLES; table++)
        made = table_create(&plane->tables[table], program_tables[table].size, program_tables[table].miss) && made;
    plane->groups = calloc(GROUPS, sizeof(struct group *));
    plane->counters = calloc(COUNTER_SETS, sizeof *plane->counters);
    if (!made || plane->groups == NULL || plane->counters == NULL) {
        plane_destroy(plane);
        return NULL;
    }
    return plane;
}

void plane_destroy(struct plane *plane) {
    if (plane == NULL)
        return;
    for (unsigned table = 0; table < TABLES; table++)
        table_destroy(&plane->tables[table]);
    for (unsigned group = 0; plane->groups != NULL && group < GROUPS; group++)
        free(plane->groups[group]);
    free(plane->groups);
    free(plane->counters);
    slots_destroy(&plane->slots);
    free(plane);
}

int plane_set_group(struct plane *plane, unsigned group, const struct replica *replicas, size_t count) {
    struct group *made = NULL;
    if (count != 0) {
        made = malloc(sizeof *made + count * sizeof *replicas);
        if (made == NULL)
            return -ENOMEM;
        made->count = count;
        memcpy(made->replicas, replicas, count * sizeof *replicas);
    }
    free(plane->groups[group]);
    plane->groups[group] = made;
    plane->version++;
    return 0;
}

struct count *counters_cell(struct counters *counters, enum counter_id counter, unsigned index) {
    switch (counter) {
    case COUNTER_LOSSES_IN:
        return index < PORTS ? &counters->losses_in[index] : NULL;
    case COUNTER_OUTCOMES:
        return index < OUTCOMES ? &counters->outcomes[index] : NULL;
    case COUNTER_LOSSES_OUT:
        return index < PORTS ? &counters->losses_out[index] : NULL;
    case COUNTER_FORGERIES:
        return index < PORTS ? &counters->forgeries[index] : NULL;
    default:
        return NULL;
    }
}

// The cell of a counter in a set, given its cell in the first one.
static struct count *cell_of(const struct plane *plane, unsigned set, const struct count *first) {
    size_t offset = (size_t)((const char *)first - (const char *)plane->counters);
    return (struct count *)(void *)((char *)&plane->counters[set] + offset);
}

void plane_read_count(const struct plane *plane, const struct count *first, uint64_t *count) {
    count[0] = count[1] = 0;
    for (unsigned set = 0; set < COUNTER_SETS; set++) {
        const struct count *cell = cell_of(plane, set, first);
        count[0] += atomic_load_explicit(&cell->packets, memory_order_relaxed);
        count[1] += atomic_load_explicit(&cell->bytes, memory_order_relaxed);
    }
}

void plane_write_count(struct plane *plane, const struct count *first, const uint64_t *count) {
    for (unsigned set = 0; set < COUNTER_SETS; set++) {
        struct count *cell = cell_of(plane, set, first);
        atomic_store_explicit(&cell->packets, set == 0 ? count[0] : 0, memory_order_relaxed);
        atomic_store_explicit(&cell->bytes, set == 0 ? count[1] : 0, memory_order_relaxed);
    }
}
