// SPDX-License-Identifier: Apache-2.0
// A plane with an entry in every table, so that fuzzers reach all code with short inputs.
#ifndef NATIVE_FUZZ_SETUP_H
#define NATIVE_FUZZ_SETUP_H

#include "plane.h"

#include <string.h>

#define FUZZ_HALVES 16
#define FUZZ_CPU_PORT 510
#define FUZZ_JOB 1
#define FUZZ_GENERATION 1
#define FUZZ_WORKERS 2
#define FUZZ_UDP_PORT 1000 // of the first worker
#define FUZZ_IP 0x7F000001 // of all senders

static inline struct plane *fuzz_plane(void) {
    const struct layout layout = {
        .lanes = 4, .block_size = 32, .halves = FUZZ_HALVES, .cpu_port = FUZZ_CPU_PORT, .max_growth = 512};
    struct plane *plane = plane_create(&layout);
    struct table *tables = plane->tables;
    const struct action own = {ACTION_OWN, {0x020000000001}}, flood = {ACTION_FLOOD, {9}}, nothing = {NO_ACTION, {0}};
    const struct action route = {ACTION_ROUTE, {2, 0x02000000000A, 0x02000000000B}}, forward = {ACTION_FORWARD, {3}};
    const struct action lose = {ACTION_LOSE, {1U << 31}}, forged = {ACTION_FORGED, {0}};
    table_insert(&tables[TABLE_OWN_ADDRESSES], &(struct key){{FUZZ_IP, 0}}, &own);
    table_insert(&tables[TABLE_OWN_SOURCES], &(struct key){{FUZZ_IP, 0}}, &forged);
    table_insert(&tables[TABLE_ROUTER_MACS], &(struct key){{0, 0}}, &nothing);
    table_insert(&tables[TABLE_MAC_ADDRESSES], &(struct key){{0x020000000002, 0}}, &forward);
    table_insert(&tables[TABLE_ROUTES], &(struct key){{0, 0}}, &route);
    table_insert(&tables[TABLE_ROUTES], &(struct key){{0x7F000000, 8}}, &route);
    table_insert(&tables[TABLE_LOSS_OUT], &(struct key){{4, 0}}, &lose);
    table_insert(&tables[TABLE_LOSS_IN], &(struct key){{5, 0}}, &lose);
    tables[TABLE_MAC_ADDRESSES].miss = flood;
    // The second worker's pool reaches beyond the registers.
    for (uint64_t rank = 0; rank < FUZZ_WORKERS; rank++) {
        const struct action admit = {ACTION_ADMIT, {UINT64_C(1) << rank, 3, 4 * rank, 16, FUZZ_JOB}};
        const struct action address = {ACTION_ADDRESS, {0x020000000100 + rank, FUZZ_IP, FUZZ_UDP_PORT + rank}};
        uint64_t first = jobs_key_first(FUZZ_IP, (uint16_t)(FUZZ_UDP_PORT + rank), FUZZ_JOB);
        uint64_t second = jobs_key_second(1, FUZZ_GENERATION, (uint8_t)rank, 0);
        table_insert(&tables[TABLE_JOBS], &(struct key){{first, second}}, &admit);
        table_insert(&tables[TABLE_WORKERS], &(struct key){{FUZZ_JOB << 16 | (rank + 1), 0}}, &address);
    }
    const struct replica group[] = {{1, 1}, {1, 2}}, ports[] = {{1, 0}, {2, 0}, {3, 1}, {4, 2}};
    plane_set_group(plane, FUZZ_JOB, group, 2);
    plane_set_group(plane, 9, ports, 4);
    return plane;
}

// Resets slots and counters: packets change nothing else.
static inline void fuzz_reset(struct plane *plane) {
    memset(plane->slots.memory, 0, FUZZ_HALVES * plane->slots.stride);
    memset(plane->counters, 0, 2 * sizeof *plane->counters);
}

#endif
