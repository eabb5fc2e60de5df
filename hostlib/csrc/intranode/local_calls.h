// SPDX-License-Identifier: Apache-2.0
// What ranks of one host tell each other of the operations that they have called.
#ifndef P4REDUCE_LOCAL_CALLS_H
#define P4REDUCE_LOCAL_CALLS_H

#include "intranode/local_pieces.h"

// Tells the others of the task, the job's operation of that number, the first being 1.
void calls_announce(const struct local *local, const struct task *task, uint64_t number);

// Whether some rank that has come to the operation has called another than this one; then all ranks fail.
bool calls_differ(const struct local *local, uint64_t number);

// What ranks have called, for the error that is theirs.
void calls_mismatch(const struct local *local, uint64_t number, p4reduce_error *error);

// When all ranks have come to the operation: takes down how each has its values, and where.
void calls_take(struct local *local, uint64_t number);

// Whether all ranks have come to the operation, have called the same, and let others write the sums to their tensors.
bool calls_in_place(const struct local *local, uint64_t number);

#endif
