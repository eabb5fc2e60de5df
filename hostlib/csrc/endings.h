// SPDX-License-Identifier: Apache-2.0
// What a packet that ends the job says.
#ifndef P4REDUCE_ENDINGS_H
#define P4REDUCE_ENDINGS_H

#include "packet.h"
#include "task.h"

// Of an ERROR. `oldest`: the first of the tasks under way here.
void endings_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                      p4reduce_error *error);

// Of an ABORT.
void endings_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

#endif
