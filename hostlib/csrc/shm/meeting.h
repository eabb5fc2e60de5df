// SPDX-License-Identifier: Apache-2.0
// How processes of one host come to share memory: the first makes it, without a name, and hands it to each who comes to
// a socket whose name only they know. Neither is a file, so that nothing is left when they are killed.
#ifndef P4REDUCE_MEETING_H
#define P4REDUCE_MEETING_H

#include "p4reduce.h"

#include <stdbool.h>

// `count` ranks of a job, of which this one is number `index`.
struct meeting {
    const char *name; // of the socket: at most 64 characters that nobody else knows
    double timeout;   // seconds
    uint32_t index, count;
    const uint8_t *ranks; // their numbers in the job; NULL: from 0 on
    uint8_t layout;       // of what is in the memory: another one is another version's
    size_t bytes;         // of it
};

// Returns a descriptor of the memory, or -1: then `error` says why. sockets: NULL, or where connections are left, which
// end when a process does: the first's to each of the others, at its index, and the others' to the first, at 0. It then
// returns when all have come.
int meeting_hold(const struct meeting *meeting, int *sockets, p4reduce_error *error);

// Says that some ranks have not come. Returns false.
bool meeting_absent(const struct meeting *meeting, const bool *here, p4reduce_error *error);

// Says what the operating system has refused, by errno. Returns false.
bool meeting_refused(p4reduce_error *error, const char *what);

#endif
