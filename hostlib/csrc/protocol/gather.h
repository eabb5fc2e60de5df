// SPDX-License-Identifier: Apache-2.0
// A small sum of floats, of which all ranks' values fit into one packet. Each rank has a part of the words that switches
// add, where the others have zeros, so its values arrive as they are, as float32. All ranks then have all values, and
// add them as in rounds of their own: by the same exponents, in the same integers.
#ifndef P4REDUCE_GATHER_H
#define P4REDUCE_GATHER_H

#include "kernels/numbers.h"

struct gather {
    struct numbers numbers;   // of the request's values
    struct numbers as_single; // of the same as float32
    size_t block_size;        // values
    const p4reduce_request *request;
    unsigned ranks, rank;
    const float *own; // this rank's values
    float values[];   // of all ranks, one after the other: what is added, as int32
};

// Whether the ranks of a job gather so many values of a type: a rule by what all of them know. Those that share a
// stream do not.
bool gather_fits(const p4reduce_membership *membership, uint32_t type, uint64_t count);

// With the request's values in this rank's part; NULL where there is no memory. free() takes it back.
struct gather *gather_new(const p4reduce_membership *membership, const struct numbers *numbers, size_t block_size,
                          const p4reduce_request *request);

// Makes of all ranks' values the request's sum and residual. fingerprint: the operation's. False where this rank's
// have come back other than it sent them.
bool gather_finish(struct gather *gather, uint32_t fingerprint);

#endif
