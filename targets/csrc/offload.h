// SPDX-License-Identifier: Apache-2.0
// What the kernel has left undone in a frame that comes from this machine (a veth pair, say): checksums to be filled
// in, and chains of segments in one frame. It is told in a virtio_net_hdr before the frame, both ways.
#ifndef NATIVE_OFFLOAD_H
#define NATIVE_OFFLOAD_H

#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Whether the frame is a chain of datagrams to the aggregator, which sees each by itself.
bool is_udp_gso(const struct virtio_net_hdr *offload, const uint8_t *frame, size_t length);

// Writes the chain's datagram that begins at byte `at` of its payload as a frame of its own; returns the frame's
// length, or 0 if there is none.
size_t extract_segment(const struct virtio_net_hdr *offload, const uint8_t *gso_frame, size_t length, size_t at,
                       uint8_t *frame);

#endif
