// SPDX-License-Identifier: Apache-2.0
// What ranks of one host that share a stream tell each other of their operations, and of their failures.
#ifndef P4REDUCE_HOST_CALLS_H
#define P4REDUCE_HOST_CALLS_H

#include "intranode/host_parts.h"

// Tells the others of a part that this rank has begun.
void host_announce(struct host *host, const struct part *part, const struct task *task);

// Whether all ranks of the host have begun the part of that number.
bool host_all_have_called(const struct host *host, uint64_t number);

// Whether that rank has.
bool host_has_called(const struct host *host, uint64_t number, uint32_t index);

// Whether the part of that number has no place yet because that rank, a follower, has not taken the sums that are there.
bool host_lacks_place(const struct host *host, uint64_t number, uint32_t index);

// Whether another has failed, or calls another operation, or is gone, so that this rank fails, too; `error` says why.
bool host_fails(const struct host *host, p4reduce_error *error);

// Tells the others that this rank fails.
void host_tell_failure(struct host *host, const p4reduce_error *error);

#endif
