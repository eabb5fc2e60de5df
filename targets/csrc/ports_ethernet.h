// SPDX-License-Identifier: Apache-2.0
// Ports that carry frames: network interfaces and sockets. Each belongs to one thread.
#ifndef NATIVE_PORTS_ETHERNET_H
#define NATIVE_PORTS_ETHERNET_H

#include "port.h"

// Both functions open a port, and return 0 or a negative errno.
int ethernet_port_open(struct port **port, unsigned number, unsigned thread, const char *interface);
// Each message of the socket is a frame. The port owns the socket after success.
int socket_port_open(struct port **port, unsigned number, unsigned thread, int socket);

#endif
