// SPDX-License-Identifier: Apache-2.0
#include "membership.h"

#include "wire/constants.h"
#include "structures.h"

#include <inttypes.h>
#include <string.h>

unsigned membership_workers(const p4reduce_membership *m) {
    return m->peer_count ? m->peer_count : m->world_size;
}

unsigned membership_rank(const p4reduce_membership *m, unsigned index) {
    return m->peer_count ? m->peers[index] : index;
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
    const uint32_t here = membership_workers(m);
    const uint32_t most = here == m->world_size ? MAX_WORKERS : PARENT;
    if (here > most)
        return error_tell(error, P4REDUCE_INVALID,
                          "%" PRIu32 " of %" PRIu32 " ranks are at one switch: accepted are up to %" PRIu32, here,
                          m->world_size, most);
    bool found = m->peer_count == 0, twice = false;
    for (uint32_t i = 0; i < m->peer_count; i++) {
        found |= m->peers[i] == m->rank;
        twice |= m->peers[i] >= m->world_size || memchr(m->peers, m->peers[i], i) != NULL;
    }
    if (!found || twice)
        return error_tell(error, P4REDUCE_INVALID,
                          "peers are not those of rank %" PRIu32 ": accepted are ranks of %" PRIu32 ", it among them",
                          m->rank, m->world_size);
    return P4REDUCE_OK;
}
