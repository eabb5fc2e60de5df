// SPDX-License-Identifier: Apache-2.0
// What a packet that ends the job says.
#ifndef P4REDUCE_ENDINGS_H
#define P4REDUCE_ENDINGS_H

#include "protocol/packet.h"
#include "protocol/slot.h"

// Of an ERROR. `oldest`: the first of the tasks under way here. `slot`: that of the packet, NULL if the job has it not.
void endings_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                      const struct slot *slot, p4reduce_error *error);

// Of a RESULT whose keys cannot be.
void endings_implausible(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

// Of words that did not come back as this rank sent them.
void endings_altered(const p4reduce_membership *membership, const struct task *task, p4reduce_error *error);

// Of an ABORT.
void endings_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

#endif
