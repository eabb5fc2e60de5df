// SPDX-License-Identifier: Apache-2.0
// Sockets of ports and their options.
#ifndef NATIVE_SOCKETS_H
#define NATIVE_SOCKETS_H

#include <netinet/in.h>
#include <stdbool.h>

#include "ip.h"

// The address of a socket of either family.
union socket_address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

// Writes the address of a UDP socket. Returns its size.
socklen_t socket_address_write(union socket_address *address, struct ip ip, uint16_t udp_port);
struct ip socket_address_ip(const union socket_address *address);
uint16_t socket_address_port(const union socket_address *address);

// Enlarges the buffers of a socket, as far as the system allows.
void enlarge_buffers(int socket);

// Opens a UDP socket at this address. `*udp_port`: 0 for any free port, which is then stored there. `shared`: other
// sockets of this process have the same address (SO_REUSEPORT). Returns the socket or a negative errno.
int udp_socket_open(struct ip ip, uint16_t *udp_port, bool shared);

// Distributes datagrams among the sockets that share an address by their slot, so that a slot stays in one thread's
// cache. The first datagram decides for all in its message. Returns 0 or a negative errno.
int steer_by_slot(int socket, unsigned sockets);

#endif
