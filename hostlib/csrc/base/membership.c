// SPDX-License-Identifier: Apache-2.0
#include "base/membership.h"

#include "base/structures.h"
#include "wire/constants.h"

#include <inttypes.h>
#include <string.h>

bool membership_beside(const p4reduce_membership *m, unsigned rank, unsigned other) {
    return m->sharing ? m->hosts[rank] == m->hosts[other] : rank == other;
}

unsigned membership_leader(const p4reduce_membership *m, unsigned rank) {
    unsigned leader = 0;
    while (!membership_beside(m, leader, rank))
        leader++;
    return leader;
}

unsigned membership_streams(const p4reduce_membership *m) {
    unsigned count = 0;
    for (unsigned rank = 0; rank < m->world_size; rank++)
        count += membership_leader(m, rank) == rank;
    return count;
}

unsigned membership_workers(const p4reduce_membership *m) {
    return m->peer_count ? m->peer_count : membership_streams(m);
}

unsigned membership_rank(const p4reduce_membership *m, unsigned index) {
    if (m->peer_count)
        return m->peers[index];
    unsigned rank = 0;
    while (membership_leader(m, rank) != rank || index-- > 0)
        rank++;
    return rank;
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
    const uint32_t here = membership_workers(m), all = membership_streams(m), leader = membership_leader(m, m->rank);
    const uint32_t most = here == all ? MAX_WORKERS : PARENT;
    if (here > most)
        return error_tell(error, P4REDUCE_INVALID,
                          "%" PRIu32 " of %" PRIu32 " %s are at one switch: accepted are up to %" PRIu32, here, all,
                          m->sharing ? "hosts" : "ranks", most);
    bool found = m->peer_count == 0, wrong = false;
    for (uint32_t i = 0; i < m->peer_count; i++) {
        found |= m->peers[i] == leader;
        wrong |= m->peers[i] >= m->world_size || memchr(m->peers, m->peers[i], i) != NULL ||
                 membership_leader(m, m->peers[i]) != m->peers[i];
    }
    if (!found || wrong)
        return error_tell(error, P4REDUCE_INVALID,
                          "peers are not those of rank %" PRIu32 ": accepted are %s of %" PRIu32 ", %" PRIu32
                          " among them",
                          m->rank, m->sharing ? "hosts' lowest ranks" : "ranks", m->world_size, leader);
    return P4REDUCE_OK;
}
