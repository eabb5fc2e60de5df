// SPDX-License-Identifier: Apache-2.0
// A follower's share of a part: it finds out what of its values is not zero, copies that for the leader, and makes its
// result of the sums.
#ifndef P4REDUCE_HOST_SHARE_H
#define P4REDUCE_HOST_SHARE_H

#include "intranode/host.h"

// Scans and copies the next blocks of the part begun last: all that small parts have. Returns whether some are left.
bool share_scan(struct host *host);

// Takes the sums of a part that has ended.
void share_take(struct host *host, const struct part *part);

#endif
