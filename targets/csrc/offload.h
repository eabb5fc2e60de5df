// SPDX-License-Identifier: Apache-2.0
// Offloads of frames from this machine, for example on a veth pair: frames whose checksum is not filled in, and GSO
// frames, which contain several segments. A virtio_net_hdr in front of a frame describes both, for receiving and
// sending.
#ifndef NATIVE_OFFLOAD_H
#define NATIVE_OFFLOAD_H

#include <linux/virtio_net.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns whether the frame is a GSO frame of datagrams to the aggregator, which processes each by itself.
bool is_udp_gso(const struct virtio_net_hdr *offload, const uint8_t *frame, size_t length);

// Writes the segment that begins at byte `at` of the GSO frame's payload as a frame of its own. Returns its length, or
// 0 if there is none.
size_t extract_segment(const struct virtio_net_hdr *offload, const uint8_t *gso_frame, size_t length, size_t at,
                       uint8_t *frame);

#endif
