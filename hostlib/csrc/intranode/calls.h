// SPDX-License-Identifier: Apache-2.0
// What ranks of one host tell each other of their calls, and of their failures.
#ifndef P4REDUCE_INTRANODE_CALLS_H
#define P4REDUCE_INTRANODE_CALLS_H

#include "intranode/intranode.h"

// Tells the others of this rank's next call. region: in which the tensor lies; NULL for none. in_place: others may write
// the sums there.
void calls_announce(struct intranode *node, const struct task *task, const struct region *region, bool in_place);

// A rank's call of that number; NULL where it has not come to it.
const struct call *calls_get(const struct intranode *node, uint32_t index, uint64_t number);

// What the values are of a rank that has made a call, as others add them.
struct numbers calls_numbers(const struct intranode *node, uint32_t index, const struct call *call,
                             const struct task *task);

// Tells all ranks if another rank's call of that number differs from this rank's.
void calls_compare(const struct intranode *node, uint64_t number);

// Whether all ranks have come to the call of that number. Who came last may not have compared it with the others' yet.
bool calls_have_all_come(const struct intranode *node, uint64_t number);

// Whether this rank's calls and another's differ; `error` says how.
bool calls_differ(const struct intranode *node, p4reduce_error *error);

// Whether a rank has said that it fails, in this rank's last call or before; `error` says which, and why.
bool calls_have_failed(const struct intranode *node, p4reduce_error *error);

// Whether this rank has to fail: for one of these, or because another is gone.
bool calls_fail(const struct intranode *node, p4reduce_error *error);

// An operation has ended, well where `error` is NULL.
void calls_end(p4reduce_operation *operation, const p4reduce_error *error);

// Sets why this rank's engine fails: where ranks call different things, that, as others, who have left for it, only say
// that they have. Returns which failure stays.
p4reduce_error calls_set_failure(struct intranode *node, const p4reduce_error *error);

// Tells the others that this rank fails, in the call of that number.
void calls_publish_failure(struct intranode *node, uint64_t number, const p4reduce_error *error);

#endif
