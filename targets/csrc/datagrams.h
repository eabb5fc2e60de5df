// SPDX-License-Identifier: Apache-2.0
// Received datagrams of a UDP port. On the general path, a frame is built around each, which goes through the pipeline.
// On the fast path, DATA that starts or adds to a round is applied to its slot without a frame, with the same result.
#ifndef NATIVE_DATAGRAMS_H
#define NATIVE_DATAGRAMS_H

#include "thread.h"

// Returns whether datagrams of this port may take the fast path: nothing happens to them before the aggregator.
bool fast_path_allowed(const struct plane *plane, const struct udp_port *udp);

// Processes all datagrams of a message, or drops them if no program runs. `fast_path`: the result of
// `fast_path_allowed`. Returns their number.
unsigned process_datagrams(struct thread *thread, const struct udp_port *udp, const struct message *message,
                           bool fast_path);

// The bytes in front of a port's datagrams in frames.
size_t udp_headers_size(const struct udp_port *udp);
// Writes the Ethernet, IP and UDP headers of a datagram of `length` bytes that came from this address, which has the
// port's family.
void udp_write_headers(const struct udp_port *udp, uint8_t *frame, struct ip ip, uint16_t udp_port, unsigned ecn,
                       size_t length);

#endif
