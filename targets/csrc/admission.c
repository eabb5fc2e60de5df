// SPDX-License-Identifier: Apache-2.0
#include "admission.h"

const struct action *find_uplink(const struct plane *plane, const struct sender *sender, unsigned job,
                                 bool *from_parent) {
    bool hit;
    const struct action *uplink = table_apply(&plane->tables[TABLE_UPLINKS], job, 0, &hit);
    if (uplink->id != ACTION_UPLINK) {
        *from_parent = false;
        return NULL;
    }
    *from_parent = hit && sender->ip == uplink->arguments[2] && sender->udp_port == uplink->arguments[3];
    return uplink;
}

bool find_member(const struct plane *plane, const struct sender *sender, const struct header *header, uint8_t worker,
                 struct member *member) {
    uint64_t first = jobs_key_first(sender->ip, sender->udp_port, header->job);
    uint64_t second = jobs_key_second(sender->port, header->generation, worker, sender->vlan);
    const struct entry *entry = table_find(&plane->tables[TABLE_JOBS], &(struct key){{first, second}});
    const struct action *job = entry != NULL ? &entry->action : &plane->tables[TABLE_JOBS].miss;
    // The arguments of NoAction are zeros: such an entry has a pool of no halves.
    *member = (struct member){
        .worker_bit = (uint32_t)job->arguments[0],
        .full_bitmap = (uint32_t)job->arguments[1],
        .pool_base = (uint32_t)job->arguments[2],
        .pool_halves = (uint32_t)job->arguments[3],
        .group = (unsigned)job->arguments[4],
        .number = entry != NULL ? entry->number : 0,
    };
    return entry != NULL;
}
