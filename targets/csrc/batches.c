// SPDX-License-Identifier: Apache-2.0
#include "batches.h"

#include <stdlib.h>
#include <string.h>

static unsigned bucket_of(const struct destination *to, size_t size) {
    return hash_to_6_bits(ip_hash(to->ip) ^ (uint32_t)to->udp_port << 16 ^ (uint32_t)size);
}

_Static_assert(BATCHES == 64, "the hash has six bits");

static bool same(const struct destination *one, const struct destination *other) {
    return one->port == other->port && one->udp_port == other->udp_port && ip_same(one->ip, other->ip);
}

static void send_batch(struct batches *batches, unsigned bucket) {
    struct batch *batch = batches->buckets[bucket].batch;
    udp_send_batch(&batches->buckets[bucket].to, batches->thread, batch);
    batch->count = 0;
    batches->waiting &= ~(UINT64_C(1) << bucket);
}

void batches_add(struct batches *batches, const struct destination *to, unsigned ecn, const uint8_t *data,
                 size_t size) {
    unsigned bucket = bucket_of(to, size);
    struct batch *batch = batches->buckets[bucket].batch;
    if (batch == NULL)
        batch = batches->buckets[bucket].batch = calloc(1, sizeof *batch);
    if (batch == NULL || size > MAX_DATAGRAM)
        return; // lost, as in a network
    if (batch->count != 0 && (batch->size != size || batch->ecn != ecn || !same(&batches->buckets[bucket].to, to)))
        send_batch(batches, bucket);
    batches->buckets[bucket].to = *to;
    batch->size = size;
    batch->ecn = ecn;
    memcpy(batch_end(batch), data, size);
    batch->count++;
    batches->waiting |= UINT64_C(1) << bucket;
    if (batch_is_full(batch))
        send_batch(batches, bucket);
}

void batches_flush(struct batches *batches) {
    while (batches->waiting != 0)
        send_batch(batches, (unsigned)__builtin_ctzll(batches->waiting));
}

void batches_destroy(struct batches *batches) {
    for (unsigned bucket = 0; bucket < BATCHES; bucket++)
        free(batches->buckets[bucket].batch);
}
