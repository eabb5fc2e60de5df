// SPDX-License-Identifier: Apache-2.0
// The rendezvous of processes of one host, by which they come to share memory. The first rank creates memory without a
// name, and sends its descriptor to each rank that connects to its socket. Ranks connect from sockets whose names
// contain their index. Nothing is a file, so nothing is left behind when they are killed. The connections stay open:
// the first rank has one to each of the others, at that rank's index, and each of the others has one to the first, at
// 0. They end when a process ends.
//
// Names are in the abstract namespace. They cannot be guessed, but any user of the host can read those that are in use
// (/proc/net/unix). So both ends check that the other has the same user. Another user who takes a rank's name first can
// keep the ranks from meeting, but cannot join them.
#ifndef P4REDUCE_RENDEZVOUS_H
#define P4REDUCE_RENDEZVOUS_H

#include "p4reduce.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { MAX_HOST_RANKS = 255 }; // that share memory: an index among them is one byte of a socket's name

// `count` ranks of a job, of which this one is number `index`.
struct rendezvous {
    const char *name; // the socket's name: at most 64 characters, not guessable
    double timeout;   // seconds, for each of the two functions that wait
    uint32_t index, count;
    const uint16_t *ranks; // their numbers in the job
    uint8_t layout;        // version of the memory's layout: ranks with another one do not meet
    size_t bytes;          // size of the memory
    int *connections;      // one for each rank; -1 for none
};

// Meets the other ranks, and opens `connections`. Returns a descriptor of the memory, which the caller closes, or -1,
// and `error` says why. After an error no connection is open.
int rendezvous_join(const struct rendezvous *rendezvous, p4reduce_error *error);

// Waits until all ranks have joined and called this. `flags` becomes those that all have set. Returns false if a rank
// has not come in time; then `error` names it.
bool rendezvous_agree(const struct rendezvous *rendezvous, uint8_t *flags, p4reduce_error *error);

// Closes all connections.
void rendezvous_leave(const struct rendezvous *rendezvous);

// Fills the address of a rank's socket: an abstract name, which is no file. Returns the address's length.
socklen_t rendezvous_address(const char *name, uint32_t index, struct sockaddr_un *address);

// Fills `error` with errno and `what` the operating system has refused. Returns false.
bool rendezvous_refused(p4reduce_error *error, const char *what);

#endif
