// SPDX-License-Identifier: Apache-2.0
// What may reach a slot: p4src/include/admission.p4 and uplink.p4, for packets in frames and for datagrams alike.
#ifndef NATIVE_ADMISSION_H
#define NATIVE_ADMISSION_H

#include "plane.h"
#include "wire/bytes.h"

// Where a packet came from.
struct sender {
    unsigned port;
    uint32_t ip;
    uint16_t udp_port;
};

// What a job's entry gives its sender.
struct member {
    uint32_t worker_bit;
    uint32_t full_bitmap;
    uint32_t pool_base;
    uint32_t pool_halves; // 0: it is not admitted to any
    unsigned group;
    uint32_t number; // of the entry
};

// The entry of the job's parent; NULL: this switch is the root of the job's tree. `from_parent`: the sender is that.
const struct action *find_uplink(const struct plane *plane, const struct sender *sender, unsigned job,
                                 bool *from_parent);

// Returns whether a job has this sender for its `worker`, and what that gives it.
bool find_member(const struct plane *plane, const struct sender *sender, const struct header *header, uint8_t worker,
                 struct member *member);

// Whether the lanes of a packet of a round are those of the round's fingerprint; other packets have no lanes of their
// own.
static inline bool lanes_match_fingerprint(const struct header *header) {
    return (header->op != OP_DATA && header->op != OP_RESULT) || header->active == (header->fingerprint & 0xFF);
}

// Whether a UDP payload of so many bytes is a packet of this program's, and its answer not longer than may be.
static inline bool well_formed(const struct layout *layout, const struct header *header, size_t length) {
    unsigned active = header->active, present = header->present;
    return header->version == PROTOCOL_VERSION && active <= all_lanes(layout) && (present & ~active) == 0 &&
           lanes_match_fingerprint(header) && length == bare_length(layout) + lanes_in(present) * lane_length(layout) &&
           (active == present || lanes_in(active ^ present) * lane_length(layout) <= layout->max_growth);
}

// Whether the packet is for a half of the member's pool, and for the one of its round.
static inline bool owns_half(const struct member *member, const struct header *header) {
    return header->slot < member->pool_halves && (header->slot & 1) == (header->seq & 1);
}

// The half, where `owns_half`. It may be beyond the registers.
static inline uint32_t half_of(const struct member *member, const struct header *header) {
    return member->pool_base + header->slot;
}

// The member's packet as its slot sees it. `keys`: with the values behind them. `parent_bit`: 0 at the root.
static inline struct contribution contribution_of(const struct layout *layout, const struct member *member,
                                                  const struct header *header, const uint8_t *keys,
                                                  uint32_t parent_bit) {
    return (struct contribution){
        .worker_bit = member->worker_bit,
        .full_bitmap = member->full_bitmap,
        .parent_bit = parent_bit,
        .worker = header->worker,
        .seq = header->seq,
        .fingerprint = header->fingerprint,
        .active = header->active,
        .present = header->present,
        .keys = keys,
        .values = keys + keys_length(layout),
    };
}

#endif
