// SPDX-License-Identifier: Apache-2.0
#include "admission.h"

const struct action *find_uplink(const struct plane *plane, const struct sender *sender, unsigned job,
                                 bool *from_parent) {
    bool hit;
    const struct action *uplink = table_apply(&plane->tables[TABLE_UPLINKS], &(struct key){{job}}, &hit);
    if (uplink->id != ACTION_UPLINK) {
        *from_parent = false;
        return NULL;
    }
    *from_parent = hit && ip_same(sender->ip, ip_of_words(&uplink->arguments[UPLINK_IP])) &&
                   sender->udp_port == uplink->arguments[UPLINK_UDP_PORT];
    return uplink;
}

bool find_member(const struct plane *plane, const struct sender *sender, const struct header *header, uint8_t worker,
                 struct member *member) {
    const struct key key = key_of_member(sender->port, sender->ip, sender->udp_port, header->job, header->generation,
                                         worker, sender->vlan);
    const struct entry *entry = table_find(&plane->tables[TABLE_JOBS], &key);
    const struct action *job = entry != NULL ? &entry->action : &plane->tables[TABLE_JOBS].miss;
    // The arguments of NoAction are zeros: such an entry has a pool of no halves.
    *member = (struct member){
        .worker_bit = (uint32_t)job->arguments[ADMIT_WORKER_BIT],
        .full_bitmap = (uint32_t)job->arguments[ADMIT_FULL_BITMAP],
        .pool_base = (uint32_t)job->arguments[ADMIT_POOL_BASE],
        .pool_halves = (uint32_t)job->arguments[ADMIT_POOL_HALVES],
        .group = (unsigned)job->arguments[ADMIT_GROUP],
        .number = entry != NULL ? entry->number : 0,
    };
    return entry != NULL;
}
