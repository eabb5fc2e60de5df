// SPDX-License-Identifier: Apache-2.0
// The registers of the slots. Each half has a struct, with the keys in network byte order, followed by the sums of all
// lanes.
//
// A half's spin lock guards its fields and sums. A thread that is the only one does not take it on the fast path.
#ifndef NATIVE_SLOTS_H
#define NATIVE_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "spinlock.h"
#include "sums.h"

#define ALIGNMENT 64 // of each half and of its sums

struct half {
    uint32_t seq;
    uint32_t bitmap;
    uint32_t fingerprint;
    atomic_uint locked;
    uint8_t envoy;   // the worker whose packet was added last
    uint8_t present; // lanes of which any worker has sent values
    bool marked;     // a packet of the round was marked (CE)
    uint8_t keys[KEY_SIZE * MAX_LANES];
};

struct slots {
    struct layout layout;
    size_t stride;
    uint8_t *memory;
    size_t memory_size;
    add_values_fn *add_values;
};

// A packet in the form in which it is applied to a slot: DATA, or RESULT or STATUS from the parent.
struct contribution {
    uint32_t worker_bit;
    uint32_t full_bitmap;
    uint32_t parent_bit; // 0: there is no parent
    uint8_t worker;
    uint32_t seq;
    uint32_t fingerprint;
    unsigned active;
    unsigned present;
    bool marked;
    const uint8_t *keys;
    const uint8_t *values; // of the present lanes, one after the other
};

// Returns false without memory.
bool slots_create(struct slots *slots, const struct layout *layout);
void slots_destroy(struct slots *slots);

static inline struct half *slots_half(const struct slots *slots, uint32_t index) {
    return (struct half *)(void *)(slots->memory + index * slots->stride);
}

// The keys, and the sums of a lane, are big-endian.
static inline const uint8_t *half_keys(const struct half *half) {
    return half->keys;
}

static inline uint8_t *half_lane(const struct slots *slots, const struct half *half, unsigned lane) {
    return (uint8_t *)(uintptr_t)half + ALIGNMENT + lane * lane_length(&slots->layout);
}

static inline void half_lock(struct half *half) {
    spin_lock(&half->locked);
}

static inline void half_unlock(struct half *half) {
    spin_unlock(&half->locked);
}

_Static_assert(sizeof(struct half) <= ALIGNMENT, "the sums begin behind it");

// Returns whether all workers are in the bitmap and the parent is not: the result of the parent is missing.
static inline bool half_awaits_parent(const struct half *half, const struct contribution *data) {
    return half->bitmap == (data->full_bitmap & ~data->parent_bit);
}

// Returns the outcome of a DATA packet for the half, and changes nothing: p4src/bmv2/slot_state.p4.
static inline enum outcome half_classify(const struct half *half, const struct contribution *data) {
    uint32_t age = data->seq - half->seq; // a serial number: RFC 1982
    if (age >> 31 == 1 || (age == 0 && half->bitmap == 0))
        return OUTCOME_STALE;
    if (age != 0)
        return OUTCOME_STARTED;
    if (data->fingerprint != half->fingerprint)
        return OUTCOME_MISMATCH;
    if ((half->bitmap & data->worker_bit) == 0)
        return OUTCOME_ADDED;
    if (half->bitmap == data->full_bitmap)
        return OUTCOME_REPLAYED;
    return half_awaits_parent(half, data) && half->envoy == data->worker ? OUTCOME_SENT_UP : OUTCOME_AHEAD;
}

// Returns the outcome of a packet from the parent, and changes nothing.
static inline enum outcome half_classify_parent(const struct half *half, const struct contribution *data, unsigned op) {
    if (data->seq != half->seq || data->fingerprint != half->fingerprint || !half_awaits_parent(half, data))
        return OUTCOME_STALE;
    return op == OP_RESULT ? OUTCOME_STORED : OUTCOME_AHEAD;
}

// Applies a packet with the outcome STARTED, ADDED or STORED. Returns whether the round is complete.
bool half_apply(const struct slots *slots, struct half *half, const struct contribution *data, enum outcome outcome);

#endif
