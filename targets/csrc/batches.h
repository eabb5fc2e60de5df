// SPDX-License-Identifier: Apache-2.0
// What comes of the long way, in batches to one destination each.
#ifndef NATIVE_BATCHES_H
#define NATIVE_BATCHES_H

#include "udp.h"

#define BATCHES 64

struct batches {
    unsigned thread;
    struct {
        struct destination to;
        struct batch *batch; // NULL: not used yet
    } buckets[BATCHES];
    uint64_t waiting; // bit i: buckets[i] has datagrams to send
};

// Puts a datagram into the batch of its size and destination, which may send others.
void batches_add(struct batches *batches, const struct destination *to, const uint8_t *data, size_t size);
// Sends what has been added.
void batches_flush(struct batches *batches);
void batches_destroy(struct batches *batches);

#endif
