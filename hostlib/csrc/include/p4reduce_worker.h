// SPDX-License-Identifier: Apache-2.0
/*
 * The protocol without I/O, for programs that have their own: packets and a clock go in, packets and results come out.
 *
 * After every call, send what p4reduce_worker_take gives, and call p4reduce_worker_tick no later than at
 * p4reduce_worker_deadline. `now` is in seconds of any clock that does not go back. Not thread-safe.
 */
#ifndef P4REDUCE_WORKER_H
#define P4REDUCE_WORKER_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct p4reduce_worker p4reduce_worker;

typedef struct p4reduce_payload {
    const uint8_t *bytes; /* valid until the next call that is not p4reduce_worker_take */
    size_t length;
} p4reduce_payload;

/* Returns NULL on error. */
P4REDUCE_API p4reduce_worker *p4reduce_worker_new(const p4reduce_membership *membership, const p4reduce_timing *timing,
                                                  p4reduce_error *error);

/* Operations under way are forgotten: their `on_end` is not called. NULL is accepted. */
P4REDUCE_API void p4reduce_worker_free(p4reduce_worker *worker);

/* Queues an operation; each slot begins it when it has finished the former. `on_end` is called from within this call
 * or a later one of the worker's, as its last act, and may submit. The request's timeout and name are ignored. */
P4REDUCE_API p4reduce_status p4reduce_worker_submit(p4reduce_worker *worker, const p4reduce_request *request,
                                                    double now, p4reduce_error *error);

/* Takes one UDP payload. What is malformed, not for this rank or of an earlier round is only counted. */
P4REDUCE_API void p4reduce_worker_receive(p4reduce_worker *worker, const void *payload, size_t length, double now);

/* Sends again what has waited too long for its answer, and what has its turn; and scans, where packets wait for it, a
 * bounded number of blocks. */
P4REDUCE_API void p4reduce_worker_tick(p4reduce_worker *worker, double now);

/* The next payloads to send to the switch, in order: at most `room`. Returns how many there are; 0 when all were taken.
 */
P4REDUCE_API size_t p4reduce_worker_take(p4reduce_worker *worker, p4reduce_payload *payloads, size_t room);

/* When to tick next: at once, where packets wait for the scan; infinite for not before a packet or an operation comes.
 */
P4REDUCE_API double p4reduce_worker_deadline(const p4reduce_worker *worker);

/* Bitmap of the ranks that the switch, when last asked, had not heard of in rounds under way. Where it has heard of all
 * of its own, those at other switches: it cannot tell which of them. Returns whether there are any. */
P4REDUCE_API int p4reduce_worker_awaited(const p4reduce_worker *worker, uint32_t awaited[8]);

/* The half, 2 * slot + round mod 2, in which a packet has waited longest, where for `timeout` seconds nothing has
 * answered it though it was sent again; else -1. */
P4REDUCE_API int32_t p4reduce_worker_unanswered(const p4reduce_worker *worker, double now, double timeout);

/* Whether no rank can be in round `seq` of the half yet: this one has not sent the round before it. */
P4REDUCE_API int p4reduce_worker_is_impossible(const p4reduce_worker *worker, uint32_t half, uint32_t seq);

/* Whether every operation that was submitted is done. */
P4REDUCE_API int p4reduce_worker_idle(const p4reduce_worker *worker);

/* Of a worker that is idle: an even round that no slot has come to yet, the same on all ranks that have done the same. */
P4REDUCE_API uint32_t p4reduce_worker_next_first_seq(const p4reduce_worker *worker);

/* Goes on with the first `slots` of those of the membership, each of which begins with round `first_seq`: every rank after
 * the same operation, when the switch's slots have been reset. P4REDUCE_INVALID where that cannot be. */
P4REDUCE_API p4reduce_status p4reduce_worker_begin_anew(p4reduce_worker *worker, uint32_t slots, uint32_t first_seq,
                                                        p4reduce_error *error);

/* Ends all operations, and those yet to come, with P4REDUCE_FAILED and this message; the first failure stays. */
P4REDUCE_API void p4reduce_worker_fail(p4reduce_worker *worker, const char *message);

/* P4REDUCE_OK, or what the worker failed with. */
P4REDUCE_API p4reduce_status p4reduce_worker_failure(const p4reduce_worker *worker, p4reduce_error *error);

P4REDUCE_API void p4reduce_worker_stats(const p4reduce_worker *worker, p4reduce_stats *stats);

/* Writes the HELLO payload that shows the controller, through the switch, where this rank is. `room` must be at least
 * 18 + 4 * lanes. Returns its length. */
P4REDUCE_API size_t p4reduce_worker_hello(const p4reduce_worker *worker, uint64_t nonce, uint8_t *payload, size_t room);

#ifdef __cplusplus
}
#endif

#endif
