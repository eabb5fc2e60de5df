// SPDX-License-Identifier: Apache-2.0
// Ports that carry frames. Each belongs to one thread.
#ifndef NATIVE_PORTS_ETHERNET_H
#define NATIVE_PORTS_ETHERNET_H

#include "port.h"

// Each opens a port, and returns 0 or a negative errno.
int ethernet_port_open(struct port **port, unsigned number, unsigned thread, const char *interface);
// A socket that gives and takes a frame a message; the port owns it once it is open.
int socket_port_open(struct port **port, unsigned number, unsigned thread, int socket);

#endif
