// SPDX-License-Identifier: Apache-2.0
// A loaded program: its tables, multicast groups, slots and counters.
//
// Locks: a thread holds the switch's lock for reading while it processes packets. All changes by the control interface
// need the lock for writing. Threads change slots under each half's lock, meters under each meter's lock, and counters
// in a set of their own, so relaxed atomics suffice there: a reader needs no order between two counters.
#ifndef NATIVE_PLANE_H
#define NATIVE_PLANE_H

#include <stdatomic.h>

#include "meter.h"
#include "slots.h"
#include "tables.h"

#define DROP_PORT 511 // BMv2 drops packets to this port
#define MAX_THREADS 64
#define COUNTER_SETS (MAX_THREADS + 1) // the first is for packets processed in threads of Python

struct count {
    _Atomic uint64_t packets;
    _Atomic uint64_t bytes;
};

// One thread's counters. The value of a counter is the sum over all threads.
struct counters {
    struct count losses_in[PORTS];
    struct count outcomes[OUTCOMES];
    struct count losses_out[PORTS];
    struct count forgeries[PORTS];
    struct count jobs[MEMBERS]; // by the number of the entry in TABLE_JOBS
};

struct replica {
    uint16_t port;
    uint16_t instance;
};

struct group {
    size_t count;
    struct replica replicas[];
};

#define GROUPS 65536

struct plane {
    struct layout layout;
    struct table tables[TABLES];
    struct group **groups; // by number
    struct slots slots;
    struct counters *counters;  // COUNTER_SETS of them
    struct meter hellos[PORTS]; // limits on HELLOs by ingress port
    uint64_t now;               // the meters' time in nanoseconds, for tests; 0: the machine's clock
    uint64_t version;           // changes with each change of tables or groups
};

struct plane *plane_create(const struct layout *layout);
void plane_destroy(struct plane *plane);

// Sets a multicast group; without replicas, removes it. Returns 0 or -ENOMEM.
int plane_set_group(struct plane *plane, unsigned group, const struct replica *replicas, size_t count);

static inline void count_packet(struct count *count, size_t bytes) {
    uint64_t packets = atomic_load_explicit(&count->packets, memory_order_relaxed);
    uint64_t sum = atomic_load_explicit(&count->bytes, memory_order_relaxed);
    atomic_store_explicit(&count->packets, packets + 1, memory_order_relaxed);
    atomic_store_explicit(&count->bytes, sum + bytes, memory_order_relaxed);
}

// Returns a cell of a counter, or NULL if the index is out of range.
struct count *counters_cell(struct counters *counters, enum counter_id counter, unsigned index);

// Read and set a counter (packets, bytes), given its cell in the first set.
void plane_read_count(const struct plane *plane, const struct count *first, uint64_t *count);
void plane_write_count(struct plane *plane, const struct count *first, const uint64_t *count);

#endif
