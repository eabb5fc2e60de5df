// SPDX-License-Identifier: Apache-2.0
#include "calendar.h"

#include <stdlib.h>

enum { CHILDREN = 4, FIRST_ROOM = 1024 };

static bool is_before(const struct event *one, const struct event *other) {
    return one->time != other->time ? one->time < other->time : one->order < other->order;
}

static bool make_room(struct calendar *calendar) {
    if (calendar->count < calendar->room)
        return true;
    const size_t room = calendar->room ? 2 * calendar->room : FIRST_ROOM;
    struct event *events = realloc(calendar->events, room * sizeof *events);
    if (events == NULL)
        return false;
    calendar->events = events;
    calendar->room = room;
    return true;
}

void calendar_add(struct calendar *calendar, uint64_t time, enum event_kind kind, void *object) {
    if (!make_room(calendar)) {
        calendar->overflow = true;
        return;
    }
    const struct event event = {.time = time, .order = calendar->added++, .kind = kind, .object = object};
    size_t at = calendar->count++;
    while (at > 0 && is_before(&event, &calendar->events[(at - 1) / CHILDREN])) {
        calendar->events[at] = calendar->events[(at - 1) / CHILDREN];
        at = (at - 1) / CHILDREN;
    }
    calendar->events[at] = event;
}

struct event calendar_take(struct calendar *calendar) {
    struct event *events = calendar->events;
    const struct event earliest = events[0], last = events[--calendar->count];
    size_t at = 0;
    for (;;) {
        const size_t first = CHILDREN * at + 1;
        if (first >= calendar->count)
            break;
        const size_t end = first + CHILDREN < calendar->count ? first + CHILDREN : calendar->count;
        size_t least = first;
        for (size_t child = first + 1; child < end; child++)
            if (is_before(&events[child], &events[least]))
                least = child;
        if (!is_before(&events[least], &last))
            break;
        events[at] = events[least];
        at = least;
    }
    events[at] = last;
    return earliest;
}
