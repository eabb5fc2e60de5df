// SPDX-License-Identifier: Apache-2.0
// Admission of packets to slots, for frames and datagrams: p4src/include/admission.p4 and uplink.p4.
#ifndef NATIVE_ADMISSION_H
#define NATIVE_ADMISSION_H

#include "plane.h"
#include "wire/bytes.h"

// The source of a packet.
struct sender {
    unsigned port;
    unsigned vlan; // 0: no tag
    struct ip ip;
    uint16_t udp_port;
};

// A member of a job: the arguments of its entry in TABLE_JOBS.
struct member {
    uint32_t worker_bit;
    uint32_t full_bitmap;
    uint32_t pool_base;
    uint32_t pool_halves; // 0: no half is admitted
    unsigned group;
    uint32_t number; // of the entry
};

// Returns the entry of the job's parent switch, or NULL at the root of the job's tree. `*from_parent`: whether the
// sender has the parent's addresses.
const struct action *find_uplink(const struct plane *plane, const struct sender *sender, unsigned job,
                                 bool *from_parent);

// Returns whether the sender is this worker of the job, and fills `member`.
bool find_member(const struct plane *plane, const struct sender *sender, const struct header *header, uint8_t worker,
                 struct member *member);

// Returns whether the active lanes of DATA or RESULT match the round's fingerprint. Other packets have no lanes.
static inline bool lanes_match_fingerprint(const struct header *header) {
    return (header->op != OP_DATA && header->op != OP_RESULT) || header->active == (header->fingerprint & 0xFF);
}

// Returns whether a UDP payload of `length` bytes is a valid packet whose answer is at most MAX_GROWTH bytes longer.
static inline bool well_formed(const struct layout *layout, const struct header *header, size_t length) {
    unsigned active = header->active, present = header->present;
    return header->version == PROTOCOL_VERSION && active <= all_lanes(layout) && (present & ~active) == 0 &&
           lanes_match_fingerprint(header) && length == bare_length(layout) + lanes_in(present) * lane_length(layout) &&
           (active == present || lanes_in(active ^ present) * lane_length(layout) <= layout->max_growth);
}

// Returns whether the packet's slot half is in the member's pool and has the parity of the packet's seq.
static inline bool owns_half(const struct member *member, const struct header *header) {
    return header->slot < member->pool_halves && (header->slot & 1) == (header->seq & 1);
}

// The index of the packet's half, if `owns_half`. It may be beyond the registers.
static inline uint32_t half_of(const struct member *member, const struct header *header) {
    return member->pool_base + header->slot;
}

// The member's packet in the form in which it is applied to a slot. `keys`: followed by the values. `parent_bit`: 0 at
// the root. `ecn`: that of its IP header.
static inline struct contribution contribution_of(const struct layout *layout, const struct member *member,
                                                  const struct header *header, const uint8_t *keys, uint32_t parent_bit,
                                                  unsigned ecn) {
    return (struct contribution){
        .worker_bit = member->worker_bit,
        .full_bitmap = member->full_bitmap,
        .parent_bit = parent_bit,
        .worker = header->worker,
        .seq = header->seq,
        .fingerprint = header->fingerprint,
        .active = header->active,
        .present = header->present,
        .marked = ecn == ECN_CE,
        .keys = keys,
        .values = keys + keys_length(layout),
    };
}

#endif
