// SPDX-License-Identifier: Apache-2.0
/*
 * The protocol without I/O, for programs that have their own: packets and a clock go in, packets and results come out.
 *
 * After every call, send the payloads of p4reduce_worker_take, and call p4reduce_worker_tick no later than at
 * p4reduce_worker_deadline. `now` is in seconds of any clock that does not go back. Not thread-safe.
 */
#ifndef P4REDUCE_WORKER_H
#define P4REDUCE_WORKER_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's side of the protocol. */
typedef struct p4reduce_worker p4reduce_worker;

/* A UDP payload to send. */
typedef struct p4reduce_payload {
    const uint8_t *bytes; /* valid until the next call that is not p4reduce_worker_take */
    size_t length;
} p4reduce_payload;

/* Makes a worker, which p4reduce_worker_free frees. Returns NULL on error. */
P4REDUCE_API p4reduce_worker *p4reduce_worker_new(const p4reduce_membership *membership, const p4reduce_timing *timing,
                                                  p4reduce_error *error);

/* Frees a worker. Operations under way are dropped, and their `on_end` is not called. NULL is accepted. */
P4REDUCE_API void p4reduce_worker_free(p4reduce_worker *worker);

/* Sets over how many aggregators the slots are striped, 1 to 32; it is 1 otherwise. Slot s is at aggregator s mod
 * `aggregators`. Packets of different aggregators may overtake each other without a loss. Returns P4REDUCE_INVALID if
 * the number is out of range, or an operation was submitted before. */
P4REDUCE_API p4reduce_status p4reduce_worker_set_aggregators(p4reduce_worker *worker, uint32_t aggregators,
                                                             p4reduce_error *error);

/* Queues an operation. Each slot begins it when it has finished the operation before. This call or a later call of the
 * worker calls `on_end` as its last act, and `on_end` may submit. The request's timeout and name are ignored. */
P4REDUCE_API p4reduce_status p4reduce_worker_submit(p4reduce_worker *worker, const p4reduce_request *request,
                                                    double now, p4reduce_error *error);

/* Takes one UDP payload. If it is malformed, of another job or of an earlier round, it is only counted. */
P4REDUCE_API void p4reduce_worker_receive(p4reduce_worker *worker, const void *payload, size_t length, double now);

/* The same for a payload whose IP packet a router has marked (CE, RFC 3168): the worker sends more slowly. Call it only
 * if the worker's own packets have ECT(0) in their IP headers. */
P4REDUCE_API void p4reduce_worker_receive_marked(p4reduce_worker *worker, const void *payload, size_t length,
                                                 double now);

/* Sends packets that have their turn, and those that have waited too long for an answer. If packets wait for the scan,
 * it scans a bounded number of blocks. */
P4REDUCE_API void p4reduce_worker_tick(p4reduce_worker *worker, double now);

/* Takes the next payloads to send to the switch, in order, at most `room`. Returns how many, 0 when all were taken. */
P4REDUCE_API size_t p4reduce_worker_take(p4reduce_worker *worker, p4reduce_payload *payloads, size_t room);

/* Returns when to tick next: at once if packets wait for the scan, infinity if no timer runs. */
P4REDUCE_API double p4reduce_worker_deadline(const p4reduce_worker *worker);

/* Sets the bitmap of the ranks that rounds under way waited for when the switch last sent a STATUS. If the switch has
 * the packets of all its own ranks, these are the ranks of other switches: it cannot tell which. Returns whether there
 * are any. */
P4REDUCE_API int p4reduce_worker_awaited(const p4reduce_worker *worker, uint32_t awaited[P4REDUCE_MAX_RANKS / 32]);

/* Returns the half, 2 * slot + round mod 2, whose retransmitted packet has waited longest, if it had no answer for
 * `timeout` seconds; otherwise -1. */
P4REDUCE_API int32_t p4reduce_worker_unanswered(const p4reduce_worker *worker, double now, double timeout);

/* Returns whether no rank can be in round `seq` of the half yet, because this rank has not sent the round before it. */
P4REDUCE_API int p4reduce_worker_is_impossible(const p4reduce_worker *worker, uint32_t half, uint32_t seq);

/* Returns whether every operation that was submitted is done. */
P4REDUCE_API int p4reduce_worker_idle(const p4reduce_worker *worker);

/* Returns an even round number that no slot has reached. The worker must be idle. Ranks that have executed the same
 * operations get the same number. */
P4REDUCE_API uint32_t p4reduce_worker_next_first_seq(const p4reduce_worker *worker);

/* Continues with the first `slots` of the membership's slots, each from round `first_seq`. Every rank calls this after
 * the same operation, when the switch's slots have been reset. Returns P4REDUCE_INVALID if an operation is under way or
 * an argument is out of range. */
P4REDUCE_API p4reduce_status p4reduce_worker_begin_anew(p4reduce_worker *worker, uint32_t slots, uint32_t first_seq,
                                                        p4reduce_error *error);

/* Sends nothing in the slots of one of the aggregators until p4reduce_worker_rewind, and ignores answers to them: slots
 * aggregator, aggregator + n, and so on, of n aggregators. Writes the round of each of them to `rounds`, at most
 * `room`. Returns how many slots these are. */
P4REDUCE_API size_t p4reduce_worker_suspend(p4reduce_worker *worker, uint32_t aggregator, uint32_t *rounds,
                                            size_t room);

/* Resumes these slots, whose aggregator is elsewhere now, from these rounds: each the least of all ranks'. The worker
 * sends its packets of these rounds again. Returns P4REDUCE_INVALID if a slot cannot go back to its round. */
P4REDUCE_API p4reduce_status p4reduce_worker_rewind(p4reduce_worker *worker, uint32_t aggregator,
                                                    const uint32_t *rounds, size_t count, double now,
                                                    p4reduce_error *error);

/* Ends all operations, and those yet to come, with P4REDUCE_FAILED and this message. Only the first failure counts. */
P4REDUCE_API void p4reduce_worker_fail(p4reduce_worker *worker, const char *message);

/* Returns P4REDUCE_OK, or the worker's failure. */
P4REDUCE_API p4reduce_status p4reduce_worker_failure(const p4reduce_worker *worker, p4reduce_error *error);

/* Returns how many blocks the worker has scanned for non-zeros so far. */
P4REDUCE_API uint64_t p4reduce_worker_scanned(const p4reduce_worker *worker);

/* Copies the worker's counters. */
P4REDUCE_API void p4reduce_worker_stats(const p4reduce_worker *worker, p4reduce_stats *stats);

/* Writes the HELLO payload that shows the controller, through the switch, where this rank is. `room` must be at least
 * 18 + 4 * lanes. Returns its length. */
P4REDUCE_API size_t p4reduce_worker_hello(const p4reduce_worker *worker, uint64_t nonce, uint8_t *payload, size_t room);

#ifdef __cplusplus
}
#endif

#endif
