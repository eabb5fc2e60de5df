// SPDX-License-Identifier: Apache-2.0
// A ring of received frames, in memory that the kernel shares with an AF_PACKET socket (TPACKET_V3).
//
// The kernel hands over a block of frames when the block is full, or after a millisecond. So blocks are small, of few
// frames: if many packets are under way, the next ones fill a block at once.
#ifndef P4REDUCE_PACKET_RING_H
#define P4REDUCE_PACKET_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packet_ring {
    uint8_t *memory; // NULL: there is no ring
    size_t block_size;
    unsigned blocks, next;
};

// Takes one frame. Returns how many packets were in it.
typedef unsigned take_frame_function(void *context, const uint8_t *frame, size_t length, double now);

// Returns whether the kernel gives the socket a ring for frames of up to `largest` bytes.
bool packet_ring_open(struct packet_ring *ring, int socket, size_t largest);

// Hands over frames that have arrived. Returns how many packets were in them; 0 when there are none.
unsigned packet_ring_receive(struct packet_ring *ring, take_frame_function *take, void *context, double now);

void packet_ring_close(struct packet_ring *ring);

#endif
