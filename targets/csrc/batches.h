// SPDX-License-Identifier: Apache-2.0
// Datagrams from the general path, in batches to one destination each.
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

// Adds a datagram to the batch of its size, destination and ECN. A batch that is full, or in its bucket, is sent.
void batches_add(struct batches *batches, const struct destination *to, unsigned ecn, const uint8_t *data, size_t size);
// Sends all batches.
void batches_flush(struct batches *batches);
void batches_destroy(struct batches *batches);

#endif
