// SPDX-License-Identifier: Apache-2.0
// How processes of one host come to share memory: the first makes it, without a name, and hands it to each who connects
// to its socket. They connect from sockets whose names say which they are. Nothing is a file, so that nothing is left
// when they are killed. The connections stay: the first's with each of the others, at its index, and each of the others'
// with the first, at 0. They end when a process does.
//
// Names are of the abstract namespace. They cannot be guessed, but any user of the host can read those that are in use
// (/proc/net/unix). So both ends check that the other is the same user. Another user who takes a rank's name first can
// keep the ranks from meeting, but not join them.
#ifndef P4REDUCE_RENDEZVOUS_H
#define P4REDUCE_RENDEZVOUS_H

#include "p4reduce.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

// `count` ranks of a job, of which this one is number `index`.
struct rendezvous {
    const char *name; // of the socket: at most 64 characters that nobody else knows
    double timeout;   // seconds
    uint32_t index, count;
    const uint8_t *ranks; // their numbers in the job
    uint8_t layout;       // of what is in the memory: another one is another version's
    size_t bytes;         // of it
    int *connections;     // one for each rank; -1 for none
};

// Returns a descriptor of the memory, or -1: then `error` says why.
int rendezvous_join(const struct rendezvous *rendezvous, p4reduce_error *error);

// Waits until all ranks have joined and called this. `flags` becomes those that all have set. False where some rank has
// not come in time; then `error` names it.
bool rendezvous_agree(const struct rendezvous *rendezvous, uint8_t *flags, p4reduce_error *error);

void rendezvous_leave(const struct rendezvous *rendezvous);

// Fills the address of the socket of the rank with that index: an abstract name, which is no file. Returns its length.
socklen_t rendezvous_address(const char *name, uint32_t index, struct sockaddr_un *address);

// Says what the operating system has refused, by errno. Returns false.
bool rendezvous_refused(p4reduce_error *error, const char *what);

#endif
