// SPDX-License-Identifier: Apache-2.0
// Requests in parts, as all ranks of a job split them.
#ifndef P4REDUCE_HOST_PARTS_H
#define P4REDUCE_HOST_PARTS_H

#include "intranode/host.h"

// Numbers an operation that has begun, as the next.
void parts_number(struct host *host, p4reduce_operation *operation);

// Makes the next part of those operations under way. NULL where there is no memory, and `error` says so.
struct part *parts_next(struct host *host, p4reduce_error *error);

// The part has its result. Returns whether its operation has.
bool parts_end(struct part *part);

// The operation has ended, well where `error` is NULL.
void parts_close(p4reduce_operation *operation, const p4reduce_error *error);

// The place of the part of that number.
static inline struct part *parts_get(struct host *host, uint64_t number) {
    return &host->parts[number % PLACES];
}

#endif
