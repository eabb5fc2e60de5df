// SPDX-License-Identifier: Apache-2.0
// Datagrams that have come to a UDP port: they are processed as if frames had been built around them. For those that
// add to a round, which go straight to the aggregator, no frame is.
#ifndef NATIVE_DATAGRAMS_H
#define NATIVE_DATAGRAMS_H

#include "thread.h"

// Whether nothing happens to a datagram on its way from this port to the aggregator: it may then take the short way.
bool fast_path_allowed(const struct plane *plane, const struct udp_port *udp);

// Processes all of a chain, or drops it where no program runs; `fast_path` as above. Returns how many there were.
unsigned process_datagrams(struct thread *thread, const struct udp_port *udp, const struct message *message,
                           bool fast_path);

// Writes the Ethernet, IPv4 and UDP headers of a datagram of `length` bytes that came from ip:port.
void udp_write_headers(const struct udp_port *udp, uint8_t *frame, uint32_t ip, uint16_t port, size_t length);

#endif
