// SPDX-License-Identifier: Apache-2.0
// The errors that end a job, with their texts: from packets, and from ranks of a host that disagree.
#ifndef P4REDUCE_JOB_ERRORS_H
#define P4REDUCE_JOB_ERRORS_H

#include "protocol/packet.h"
#include "protocol/slot.h"

// Of an ERROR. `oldest`: the first of the tasks under way here. `slot`: that of the packet, NULL if the job has it not.
void job_error_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                        const struct slot *slot, p4reduce_error *error);

// Of ranks of one host, of whose operation of that number this one has called `own`; `theirs` says what others have.
void job_error_disagreement(uint32_t number, const char *theirs, unsigned rank, const char *own, uint32_t fingerprint,
                            p4reduce_error *error);

// Of a RESULT whose keys cannot be.
void job_error_implausible(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

// Of words that did not come back as this rank sent them.
void job_error_altered(const p4reduce_membership *membership, const struct task *task, p4reduce_error *error);

// Of an ABORT.
void job_error_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

#endif
