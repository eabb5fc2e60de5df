// SPDX-License-Identifier: Apache-2.0
// Sockets of ports, and their options.
#ifndef NATIVE_SOCKETS_H
#define NATIVE_SOCKETS_H

#include <netinet/in.h>
#include <stdbool.h>

// What goes wrong with a socket's buffers is no error: they are then as large as the system allows.
void enlarge_buffers(int socket);

// A UDP socket at `address`, which it fills where a port of 0 means any free one; `shared` with others of this process.
// Returns it, or a negative errno.
int udp_socket_open(struct sockaddr_in *address, bool shared);

// Deals the datagrams to the sockets that share an address by their slot, so that a slot stays in one thread's cache. A
// chain of datagrams goes where its first one belongs. Returns 0 or a negative errno.
int steer_by_slot(int socket, unsigned sockets);

#endif
