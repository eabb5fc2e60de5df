// SPDX-License-Identifier: Apache-2.0
// How ranks of one host wait for each other and wake each other up. Each has a datagram socket of its own name. A rank
// that is going to sleep says so in its record, looks once more for what it waits for, and polls; whoever does something
// that others may wait for sends to those that said so. Both are sequentially consistent, so that one of the two sees
// the other. Any user of the host can read the names (/proc/net/unix) and send to them: that wakes a rank for nothing.
#ifndef P4REDUCE_WAKEUP_H
#define P4REDUCE_WAKEUP_H

#include "intranode/intranode.h"

// Begins to listen, where the segment is open. Returns false where the kernel refuses, by errno.
bool wakeup_open(struct intranode *node, const char *meeting);

// Wakes one rank, or all, where they rest.
void wakeup_rank(const struct intranode *node, uint32_t index);
void wakeup_all(const struct intranode *node);

// Sends to all others, whether they rest or not: for what they have to know even if a rank was killed after it had
// cleared another's `resting`, and before it sent.
void wakeup_broadcast(const struct intranode *node);

// This rank is going to sleep: it is woken by what others do from now on. Returns what to wait for, until `limit` at the
// latest.
struct rest wakeup_rest(struct intranode *node, double limit);

// After it has slept: takes what has woken this rank, and sees who is gone.
void wakeup_hear(struct intranode *node);

// Lets the others of the host see that this rank is gone, and gives their memory back; no thread may drive the
// engine any more.
void intranode_close(struct intranode *node);

#endif
