// SPDX-License-Identifier: Apache-2.0
// Operations whose tensors all lie in regions: each piece is added up by one rank, who writes the sums to all ranks'
// tensors.
#ifndef P4REDUCE_LOCAL_IN_PLACE_H
#define P4REDUCE_LOCAL_IN_PLACE_H

#include "intranode/local_waiting.h"

// Lends the tensor of the operation that begins to the others, where it lies in a region.
void in_place_lend(struct local *local);

// Waits until all ranks have come to the operation, and finds out whether all add up in place. False if it has failed.
bool in_place_meet(p4reduce_engine *engine);

// Adds up, together with the others. False if the operation has failed. Where no rank can, it is not under way any more.
bool in_place_carry(p4reduce_engine *engine);

// The operation has ended, well or not: others do not write to this rank's tensor any more.
void in_place_take_back(struct local *local, bool well);

#endif
