// SPDX-License-Identifier: Apache-2.0
// A plane with an entry in every table, so that fuzzers reach all code with short inputs.
#ifndef NATIVE_FUZZ_SETUP_H
#define NATIVE_FUZZ_SETUP_H

#include "plane.h"

#include <string.h>

#define FUZZ_HALVES 16
#define FUZZ_CPU_PORT 510
#define FUZZ_JOB 1 // of IPv4, at port 1; that of IPv6 is the next, at the next port
#define FUZZ_FAMILIES 2
#define FUZZ_GENERATION 1
#define FUZZ_WORKERS 2
#define FUZZ_UDP_PORT 1000 // of the first worker

// The address of all hosts. `family`: 0 for IPv4, 1 for IPv6.
static inline struct ip fuzz_ip(unsigned family) {
    return family == 0 ? ip_of_ipv4(0x7F000001) : (struct ip){UINT64_C(0xFD00) << 48, 1};
}

static inline void fuzz_job(struct plane *plane, unsigned family) {
    struct table *tables = plane->tables;
    const struct ip ip = fuzz_ip(family);
    const struct key own_key = key_of_ip(ip);
    const struct action own = {ACTION_OWN, {0x020000000001}}, forged = {ACTION_FORGED, {0}};
    const uint16_t job = (uint16_t)(FUZZ_JOB + family), port = (uint16_t)(1 + family);
    table_insert(&tables[TABLE_OWN_ADDRESSES], &own_key, &own);
    table_insert(&tables[TABLE_OWN_SOURCES], &own_key, &forged);
    // The second worker's pool reaches beyond the registers.
    for (unsigned rank = 0; rank < FUZZ_WORKERS; rank++) {
        const uint16_t udp_port = (uint16_t)(FUZZ_UDP_PORT + rank);
        const struct key member = key_of_member(port, ip, udp_port, job, FUZZ_GENERATION, (uint8_t)rank, 0);
        const struct key worker = key_of_worker(job, (uint16_t)(rank + 1));
        const struct action admit = {ACTION_ADMIT, {UINT64_C(1) << rank, 3, 4 * rank, 16, job}};
        const struct action address = {ACTION_ADDRESS, {0x020000000100 + rank, ip.high, ip.low, udp_port}};
        table_insert(&tables[TABLE_JOBS], &member, &admit);
        table_insert(&tables[TABLE_WORKERS], &worker, &address);
    }
    const struct replica group[] = {{port, 1}, {port, 2}};
    plane_set_group(plane, job, group, 2);
}

static inline struct plane *fuzz_plane(void) {
    const struct layout layout = {
        .lanes = 4, .block_size = 32, .halves = FUZZ_HALVES, .cpu_port = FUZZ_CPU_PORT, .max_growth = 512};
    struct plane *plane = plane_create(&layout);
    struct table *tables = plane->tables;
    const struct action flood = {ACTION_FLOOD, {9}}, nothing = {NO_ACTION, {0}}, lose = {ACTION_LOSE, {1U << 31}};
    const struct action route = {ACTION_ROUTE, {2, 0x02000000000A, 0x02000000000B}}, forward = {ACTION_FORWARD, {3}};
    table_insert(&tables[TABLE_ROUTER_MACS], &(struct key){{0}}, &nothing);
    table_insert(&tables[TABLE_MAC_ADDRESSES], &(struct key){{0x020000000002}}, &forward);
    table_insert(&tables[TABLE_ROUTES], &(struct key){{0, 0}}, &route);
    table_insert(&tables[TABLE_ROUTES], &(struct key){{0x7F000000, 8}}, &route);
    table_insert(&tables[TABLE_LOSS_OUT], &(struct key){{4}}, &lose);
    table_insert(&tables[TABLE_LOSS_IN], &(struct key){{5}}, &lose);
    tables[TABLE_MAC_ADDRESSES].miss = flood;
    for (unsigned family = 0; family < FUZZ_FAMILIES; family++)
        fuzz_job(plane, family);
    const struct replica ports[] = {{1, 0}, {2, 0}, {3, 1}, {4, 2}};
    plane_set_group(plane, 9, ports, 4);
    return plane;
}

// Resets slots and counters: packets change nothing else.
static inline void fuzz_reset(struct plane *plane) {
    memset(plane->slots.memory, 0, FUZZ_HALVES * plane->slots.stride);
    memset(plane->counters, 0, 2 * sizeof *plane->counters);
}

#endif
