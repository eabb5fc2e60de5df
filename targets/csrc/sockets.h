// SPDX-License-Identifier: Apache-2.0
// Sockets of ports and their options.
#ifndef NATIVE_SOCKETS_H
#define NATIVE_SOCKETS_H

#include <netinet/in.h>
#include <stdbool.h>

// Enlarges the buffers of a socket, as far as the system allows.
void enlarge_buffers(int socket);

// Opens a UDP socket at `address`, and stores the actual port there if it is 0. `shared`: other sockets of this process
// have the same address (SO_REUSEPORT). Returns the socket or a negative errno.
int udp_socket_open(struct sockaddr_in *address, bool shared);

// Distributes datagrams among the sockets that share an address by their slot, so that a slot stays in one thread's
// cache. The first datagram decides for all in its message. Returns 0 or a negative errno.
int steer_by_slot(int socket, unsigned sockets);

#endif
