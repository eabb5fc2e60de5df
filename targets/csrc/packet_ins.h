// SPDX-License-Identifier: Apache-2.0
// The queue of packet-ins: from any thread to the one that waits for them. If it is full, frames are dropped.
#ifndef NATIVE_PACKET_INS_H
#define NATIVE_PACKET_INS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACKET_INS_CAPACITY (4U << 20)

struct packet_ins {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t *ring;     // each frame after its length
    size_t head, tail; // bytes written so far, bytes read so far
    bool closed;
    _Atomic uint64_t lost;
};

// Returns false without memory.
bool packet_ins_create(struct packet_ins *queue);
void packet_ins_destroy(struct packet_ins *queue);

void packet_ins_put(struct packet_ins *queue, const uint8_t *frame, size_t length);
// Waits for a frame. Returns its length, or -ESHUTDOWN after `packet_ins_close`; `frame` has room for MAX_FRAME bytes.
long packet_ins_take(struct packet_ins *queue, uint8_t *frame);
void packet_ins_close(struct packet_ins *queue);

#endif
