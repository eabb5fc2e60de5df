// SPDX-License-Identifier: Apache-2.0
// The errors that end a job: from packets, and from ranks of a host that disagree.
#ifndef P4REDUCE_JOB_ERRORS_H
#define P4REDUCE_JOB_ERRORS_H

#include "protocol/packet.h"
#include "protocol/slot.h"

// Fills the error for an ERROR packet. `oldest`: the first of the tasks under way here. `slot`: the packet's slot, NULL
// if the job does not have it.
void job_error_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                        const struct slot *slot, p4reduce_error *error);

// Fills the error for ranks of one host that disagree on operation `number`. `own`: this rank's operation, in words.
// `theirs`: the others'.
void job_error_disagreement(uint32_t number, const char *theirs, unsigned rank, const char *own, uint32_t fingerprint,
                            p4reduce_error *error);

// Fills the error for a RESULT whose keys are impossible.
void job_error_implausible(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

// Fills the error for words that came back other than this rank sent them.
void job_error_altered(const p4reduce_membership *membership, const struct task *task, p4reduce_error *error);

// Fills the error for an ABORT.
void job_error_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error);

#endif
