// SPDX-License-Identifier: Apache-2.0
// A small sum of floats: the values of all ranks fit into one packet. Each rank owns a part of the words that switches
// add, and the others send zeros there. So its values arrive unchanged, as float32. All ranks then have all values, and
// compute the same sum that rounds of their own would have given: with the same exponents, in the same integers.
#ifndef P4REDUCE_GATHER_H
#define P4REDUCE_GATHER_H

#include "kernels/numbers.h"

// One gather. The request must outlive it.
struct gather {
    struct numbers numbers;   // for the request's values
    struct numbers as_single; // for the same values as float32
    size_t block_size;        // values
    const p4reduce_request *request;
    unsigned ranks, rank;
    const float *own; // this rank's values
    float values[];   // all ranks' values, rank after rank: the words that are added, as int32
};

// Returns whether the ranks of a job gather `count` values of a type. All ranks decide alike, by what all of them know.
// Ranks that share a stream do not gather.
bool gather_fits(const p4reduce_membership *membership, uint32_t type, uint64_t count);

// Returns a gather with the request's values in this rank's part, which free() frees; NULL if there is no memory.
struct gather *gather_new(const p4reduce_membership *membership, const struct numbers *numbers, size_t block_size,
                          const p4reduce_request *request);

// Computes the request's sum and residual from all ranks' values. fingerprint: the operation's. Returns false if this
// rank's values came back changed.
bool gather_finish(struct gather *gather, uint32_t fingerprint);

#endif
