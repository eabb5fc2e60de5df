// SPDX-License-Identifier: Apache-2.0
// UDP ports of the switch: each has a socket in each thread.
#ifndef NATIVE_PORTS_UDP_H
#define NATIVE_PORTS_UDP_H

#include "ip.h"
#include "port.h"

extern const struct port_kind udp_port_kind;

// Opens a port. Returns 0 or a negative errno. `*udp_port`: 0 for any free port, whose number is then stored there.
int udp_port_open(struct port **port, unsigned number, struct ip ip, uint16_t *udp_port, unsigned threads);

#endif
