// SPDX-License-Identifier: Apache-2.0
// The registers of the slots. A half keeps keys and sums as they stand in a RESULT, so that one is sent from where it
// is:
//
//   struct half ... | aggregation header | keys | values of lane 0 | lane 1 ...
//                   wire                        values, aligned to 64
#ifndef NATIVE_SLOTS_H
#define NATIVE_SLOTS_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "packet.h"
#include "sums.h"

struct half {
    uint32_t seq;
    uint32_t bitmap;
    uint32_t fingerprint;
    atomic_uchar locked;
    // The thread (counted from 1) that has yet to send a RESULT from here; 0: none.
    atomic_uchar unsent;
};

struct slots {
    struct layout layout;
    size_t wire_offset;
    size_t values_offset;
    size_t stride;
    uint8_t *memory;
    size_t memory_size;
    add_values_fn *add_values;
};

// A DATA packet as its slot sees it.
struct contribution {
    uint32_t worker_bit;
    uint32_t full_bitmap;
    uint32_t seq;
    uint32_t fingerprint;
    unsigned active;
    unsigned present;
    const uint8_t *keys;
    const uint8_t *values; // of the present lanes, one after the other
};

// Returns false where there is no memory.
bool slots_create(struct slots *slots, const struct layout *layout);
void slots_destroy(struct slots *slots);

static inline struct half *slots_half(const struct slots *slots, uint32_t index) {
    return (struct half *)(void *)(slots->memory + index * slots->stride);
}

static inline uint8_t *half_wire(const struct slots *slots, struct half *half) {
    return (uint8_t *)half + slots->wire_offset;
}

static inline uint8_t *half_keys(const struct slots *slots, struct half *half) {
    return half_wire(slots, half) + AGGREGATION_SIZE;
}

static inline uint8_t *half_lane(const struct slots *slots, struct half *half, unsigned lane) {
    return (uint8_t *)half + slots->values_offset + lane * lane_length(&slots->layout);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static inline void half_lock(struct half *half) {
    while (atomic_exchange_explicit(&half->locked, 1, memory_order_acquire) != 0)
        while (atomic_load_explicit(&half->locked, memory_order_relaxed) != 0)
            relax();
}

static inline void half_unlock(struct half *half) {
    atomic_store_explicit(&half->locked, 0, memory_order_release);
}

// The same, once nothing has yet to be sent from the half. The caller has sent its own.
static inline void half_lock_sent(struct half *half) {
    for (;;) {
        half_lock(half);
        if (atomic_load_explicit(&half->unsent, memory_order_acquire) == 0)
            return;
        half_unlock(half);
        sched_yield();
    }
}

// What a DATA packet would do to the half: p4src/bmv2/slot_state.p4.
static inline enum outcome half_judge(const struct half *half, const struct contribution *data) {
    uint32_t age = data->seq - half->seq; // a serial number: RFC 1982
    if (age >> 31 == 1 || (age == 0 && half->bitmap == 0))
        return OUTCOME_STALE;
    if (age != 0)
        return OUTCOME_STARTED;
    if (data->fingerprint != half->fingerprint)
        return OUTCOME_MISMATCH;
    if ((half->bitmap & data->worker_bit) == 0)
        return OUTCOME_ADDED;
    return half->bitmap != data->full_bitmap ? OUTCOME_AHEAD : OUTCOME_REPLAYED;
}

// Does it, where the outcome is STARTED or ADDED. Returns whether the round is complete.
bool half_contribute(const struct slots *slots, struct half *half, const struct contribution *data,
                     enum outcome outcome);

#endif
