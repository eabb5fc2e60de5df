// SPDX-License-Identifier: Apache-2.0
// The calls and failures that ranks of one host publish to each other.
#ifndef P4REDUCE_INTRANODE_CALLS_H
#define P4REDUCE_INTRANODE_CALLS_H

#include "intranode/intranode.h"

// Publishes this rank's next call. region: the one in which the tensor lies, or NULL. in_place: others may write the
// sums into the tensor.
void calls_announce(struct intranode *node, const struct task *task, const struct region *region, bool in_place);

// Returns a rank's call of that number, or NULL if the rank has not come to it.
const struct call *calls_get(const struct intranode *node, uint32_t index, uint64_t number);

// Returns the form of a rank's values in a call, for other ranks to add them.
struct numbers calls_numbers(const struct intranode *node, uint32_t index, const struct call *call,
                             const struct task *task);

// Compares this rank's call of that number with the others', and reports a difference to all ranks.
void calls_compare(const struct intranode *node, uint64_t number);

// Returns whether all ranks have come to the call of that number. The last to come may not have compared it yet.
bool calls_have_all_come(const struct intranode *node, uint64_t number);

// Returns whether ranks' calls differ, up to this rank's last call. If so, `error` says how.
bool calls_differ(const struct intranode *node, p4reduce_error *error);

// Returns whether a rank has published a failure in this rank's last call or before. If so, `error` says which and why.
bool calls_have_failed(const struct intranode *node, p4reduce_error *error);

// Returns whether this rank must fail: for one of these reasons, or because another rank has ended.
bool calls_fail(const struct intranode *node, p4reduce_error *error);

// Ends an operation, without an error if `error` is NULL.
void calls_end(p4reduce_operation *operation, const p4reduce_error *error);

// Sets the failure of this rank's engine, and returns the failure that counts. If ranks call different operations, that
// is the failure: other ranks, which have failed for it, may only have reported that they left.
p4reduce_error calls_set_failure(struct intranode *node, const p4reduce_error *error);

// Publishes that this rank fails, in the call of that number.
void calls_publish_failure(struct intranode *node, uint64_t number, const p4reduce_error *error);

#endif
