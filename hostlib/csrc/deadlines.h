// SPDX-License-Identifier: Apache-2.0
// Which slots are due: a queue by deadline, hostlib/p4reduce/protocol/deadlines.py in C.
#ifndef P4REDUCE_DEADLINES_H
#define P4REDUCE_DEADLINES_H

#include "slot.h"

// A heap of the slots that wait for something, the first to come up at place 1. Most packets are answered long before,
// so a slot whose deadline moves on, or ends, keeps its place, which is put right only when it comes up: what goes well
// costs nothing.
struct deadlines {
    struct slot **heap;
    uint32_t count;
};

// False if there is no memory.
bool deadlines_open(struct deadlines *deadlines, uint32_t slots);
void deadlines_close(struct deadlines *deadlines);

// Has the slot come up at that time, which is earlier than it would.
void deadlines_bring_forward(struct deadlines *deadlines, struct slot *slot, double time);

// Has the slot come up when it is due, or before.
static inline void deadlines_add(struct deadlines *deadlines, struct slot *slot) {
    const double due_at = slot_due_at(slot);
    if (due_at < (slot->place ? slot->comes_up_at : NEVER))
        deadlines_bring_forward(deadlines, slot, due_at);
}

// Takes out the slots that are due, in the order of their indexes. Returns how many they are.
uint32_t deadlines_take_due(struct deadlines *deadlines, double now, struct slot **due);

// When the first slot is due.
double deadlines_first(struct deadlines *deadlines);

#endif
