// SPDX-License-Identifier: Apache-2.0
#include "deadlines.h"

#include <stdlib.h>

bool deadlines_open(struct deadlines *deadlines, uint32_t slots) {
    deadlines->count = 0;
    deadlines->heap = calloc((size_t)slots + 1, sizeof(struct slot *));
    return deadlines->heap != NULL;
}

void deadlines_close(struct deadlines *deadlines) {
    free(deadlines->heap);
}

static void put(struct deadlines *deadlines, struct slot *slot, uint32_t place) {
    deadlines->heap[place] = slot;
    slot->place = place;
}

static void rise(struct deadlines *deadlines, struct slot *slot) {
    uint32_t place = slot->place;
    for (; place > 1 && slot->comes_up_at < deadlines->heap[place / 2]->comes_up_at; place /= 2)
        put(deadlines, deadlines->heap[place / 2], place);
    put(deadlines, slot, place);
}

static void sink(struct deadlines *deadlines, struct slot *slot) {
    uint32_t place = slot->place, below;
    while ((below = 2 * place) <= deadlines->count) {
        if (below < deadlines->count && deadlines->heap[below + 1]->comes_up_at < deadlines->heap[below]->comes_up_at)
            below++;
        if (slot->comes_up_at <= deadlines->heap[below]->comes_up_at)
            break;
        put(deadlines, deadlines->heap[below], place);
        place = below;
    }
    put(deadlines, slot, place);
}

static void take_first(struct deadlines *deadlines) {
    deadlines->heap[1]->place = 0;
    struct slot *last = deadlines->heap[deadlines->count--];
    if (deadlines->count > 0) {
        last->place = 1;
        sink(deadlines, last);
    }
}

// The first slot has come up before it is due: puts it where it belongs, if anywhere.
static void put_right(struct deadlines *deadlines, struct slot *first) {
    first->comes_up_at = slot_due_at(first);
    if (first->comes_up_at < NEVER)
        sink(deadlines, first);
    else
        take_first(deadlines);
}

void deadlines_bring_forward(struct deadlines *deadlines, struct slot *slot, double time) {
    if (!slot->place)
        slot->place = ++deadlines->count;
    slot->comes_up_at = time;
    rise(deadlines, slot);
}

static int by_index(const void *one, const void *other) {
    const uint32_t first = (*(struct slot *const *)one)->index, second = (*(struct slot *const *)other)->index;
    return (first > second) - (first < second);
}

uint32_t deadlines_take_due(struct deadlines *deadlines, double now, struct slot **due) {
    uint32_t count = 0;
    while (deadlines->count > 0 && deadlines->heap[1]->comes_up_at <= now) {
        struct slot *first = deadlines->heap[1];
        if (slot_due_at(first) <= now) {
            take_first(deadlines);
            due[count++] = first;
        } else {
            put_right(deadlines, first);
        }
    }
    qsort(due, count, sizeof(struct slot *), by_index);
    return count;
}

double deadlines_first(struct deadlines *deadlines) {
    while (deadlines->count > 0) {
        struct slot *first = deadlines->heap[1];
        if (first->comes_up_at == slot_due_at(first))
            return first->comes_up_at;
        put_right(deadlines, first);
    }
    return NEVER;
}
