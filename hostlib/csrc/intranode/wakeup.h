// SPDX-License-Identifier: Apache-2.0
// Notifications between ranks of one host. Each rank has a datagram socket with a name of its own.
//
// A rank that is about to sleep stores `sleeping` in its record, checks its condition once more, and polls. A rank that
// makes a condition true loads the others' `sleeping`, and sends to those that sleep. All these accesses are
// sequentially consistent, so the sleeper sees the condition, or the other rank sees `sleeping`. Callers must check the
// condition after wakeup_announce_sleep and before they poll.
//
// Any user of the host can read the names (/proc/net/unix) and send to them. That only wakes a rank for nothing.
#ifndef P4REDUCE_WAKEUP_H
#define P4REDUCE_WAKEUP_H

#include "intranode/intranode.h"

// Begins to listen. The segment must be open. Returns false if the kernel refuses, with errno.
bool wakeup_open(struct intranode *node, const char *rendezvous);

// Wakes one rank, or all other ranks, if they sleep. Call it after the condition is stored, with sequential
// consistency.
void wakeup_rank(const struct intranode *node, uint32_t index);
void wakeup_all(const struct intranode *node);

// Sends to all others, whether they sleep or not. It is for failures, which others must notice even if a rank was
// killed after it had cleared another's `sleeping` and before it sent.
void wakeup_broadcast(const struct intranode *node);

// Announces that this rank is about to sleep. From now on, others wake it. Returns what to wait for, until `limit` at
// the latest.
struct wait_set wakeup_announce_sleep(struct intranode *node, double limit);

// After a sleep: reads the notifications, and finds ranks that have ended.
void wakeup_receive(struct intranode *node);

// Closes the connections, by which the others see that this rank has ended, and unmaps the segment. No thread may hold
// the progress lock any more.
void intranode_close(struct intranode *node);

#endif
