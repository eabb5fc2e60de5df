// SPDX-License-Identifier: Apache-2.0
#include "base/membership.h"

#include "base/structures.h"
#include "wire/constants.h"

#include <inttypes.h>

// The public header repeats the constants of packets.
_Static_assert(sizeof((p4reduce_membership){0}.peers) == MAX_WORKERS * sizeof(uint16_t), "peers");
_Static_assert(P4REDUCE_MAX_RANKS == MAX_RANKS, "ranks");

unsigned membership_host(const p4reduce_membership *m, unsigned rank) {
    return m->sharing ? m->hosts[rank] : rank;
}

bool membership_beside(const p4reduce_membership *m, unsigned rank, unsigned other) {
    return membership_host(m, rank) == membership_host(m, other);
}

unsigned membership_leader(const p4reduce_membership *m, unsigned rank) {
    unsigned leader = m->sharing ? 0 : rank;
    while (!membership_beside(m, leader, rank))
        leader++;
    return leader;
}

// Finds the leaders, lowest first. Returns how many there are.
static unsigned find_leaders(const p4reduce_membership *m, uint16_t leaders[MAX_RANKS]) {
    bool found[MAX_RANKS] = {false};
    unsigned count = 0;
    for (unsigned rank = 0; rank < m->world_size; rank++) {
        const unsigned host = membership_host(m, rank);
        if (!found[host])
            leaders[count++] = (uint16_t)rank;
        found[host] = true;
    }
    return count;
}

unsigned membership_streams(const p4reduce_membership *m) {
    uint16_t leaders[MAX_RANKS];
    return m->sharing ? find_leaders(m, leaders) : m->world_size;
}

unsigned membership_workers(const p4reduce_membership *m) {
    return m->peer_count ? m->peer_count : membership_streams(m);
}

unsigned membership_rank(const p4reduce_membership *m, unsigned index) {
    if (m->peer_count)
        return m->peers[index];
    uint16_t leaders[MAX_RANKS];
    find_leaders(m, leaders);
    return leaders[index];
}

unsigned membership_worker(const p4reduce_membership *m) {
    const unsigned leader = membership_leader(m, m->rank);
    unsigned worker = 0;
    while (membership_rank(m, worker) != leader)
        worker++;
    return worker;
}

uint32_t membership_all_slots(const p4reduce_membership *m) {
    return m->all_slots ? m->all_slots : m->slots;
}

static bool occurs(const uint16_t *ranks, uint32_t count, unsigned rank) {
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

p4reduce_status membership_check(const p4reduce_membership *m, p4reduce_error *error) {
    const struct {
        const char *name;
        uint32_t value, least, most;
    } fields[] = {
        {"job", m->job, 0, UINT16_MAX},
        {"generation", m->generation, 0, UINT16_MAX},
        {"world_size", m->world_size, 1, MAX_RANKS},
        {"rank", m->rank, 0, m->world_size - 1},
        {"slots", m->slots, 1, 0x8000},
        {"all_slots", membership_all_slots(m), m->slots, 0x8000},
        {"first_slot", m->first_slot, 0, membership_all_slots(m) - m->slots},
        {"lanes", m->lanes, 1, MAX_LANES},
        {"block_size", m->block_size, 1, 1024},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
            return error_tell(error, P4REDUCE_INVALID, "%s is %" PRIu32 ": accepted are %" PRIu32 " to %" PRIu32,
                              fields[i].name, fields[i].value, fields[i].least, fields[i].most);
    if (m->first_seq % 2)
        return error_tell(error, P4REDUCE_INVALID,
                          "first_seq is %" PRIu32 ": accepted are even numbers: slots start in half 0", m->first_seq);
    for (uint32_t rank = 0; m->sharing && rank < m->world_size; rank++)
        if (m->hosts[rank] >= MAX_RANKS)
            return error_tell(error, P4REDUCE_INVALID, "hosts[%" PRIu32 "] is %u: accepted are 0 to %d", rank,
                              m->hosts[rank], MAX_RANKS - 1);
    const uint32_t here = membership_workers(m), all = membership_streams(m), leader = membership_leader(m, m->rank);
    const uint32_t most = here == all ? MAX_WORKERS : PARENT;
    if (here > most)
        return error_tell(error, P4REDUCE_INVALID,
                          "%" PRIu32 " of %" PRIu32 " %s are at one switch: accepted are up to %" PRIu32, here, all,
                          m->sharing ? "hosts" : "ranks", most);
    bool found = m->peer_count == 0, wrong = false;
    for (uint32_t i = 0; i < m->peer_count; i++) {
        found |= m->peers[i] == leader;
        wrong |= m->peers[i] >= m->world_size || occurs(m->peers, i, m->peers[i]) ||
                 membership_leader(m, m->peers[i]) != m->peers[i];
    }
    if (!found || wrong)
        return error_tell(error, P4REDUCE_INVALID,
                          "peers are not those of rank %" PRIu32 ": accepted are %s of %" PRIu32 ", %" PRIu32
                          " among them",
                          m->rank, m->sharing ? "hosts' lowest ranks" : "ranks", m->world_size, leader);
    return P4REDUCE_OK;
}
