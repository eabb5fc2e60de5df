// SPDX-License-Identifier: Apache-2.0
// The events to come, the earliest first; of events at the same time, the one that was added first.
#ifndef CALENDAR_H
#define CALENDAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum event_kind {
    EVENT_ARRIVAL,  // of a packet at the end of its link
    EVENT_TURN,     // of a host: packets or timers that it has to handle
    EVENT_START,    // of an operation
    EVENT_SEND,     // of a message's next packet
    EVENT_RECEIVED, // of a whole message
};

struct event {
    uint64_t time;
    uint64_t order;
    enum event_kind kind;
    void *object;
};

struct calendar {
    struct event *events; // a heap in which each event has up to 4 children
    size_t count;
    size_t room;
    uint64_t added;
    bool overflow; // an event was dropped for want of memory
};

void calendar_add(struct calendar *calendar, uint64_t time, enum event_kind kind, void *object);
// Removes the earliest event. The calendar must not be empty.
struct event calendar_take(struct calendar *calendar);

#endif
