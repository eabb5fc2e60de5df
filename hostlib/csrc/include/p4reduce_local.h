/* SPDX-License-Identifier: Apache-2.0 */
/* Engines for ranks of one host. If all ranks of a job are on one host, they reduce in shared memory and send no
 * packets. All that p4reduce.h says about engines holds, and results have the same bits as those of a switch. */
#ifndef P4REDUCE_LOCAL_API_H
#define P4REDUCE_LOCAL_API_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options of the two functions below. */
typedef struct p4reduce_local_options {
    uint32_t size;
    uint32_t copies;         /* not 0: values are copied through shared memory, even if ranks can read each other's */
    const char *rendezvous;  /* name of the rendezvous: at most 64 characters, unique and not guessable */
    double timeout;          /* seconds in which all ranks must call */
    const char *thread_name; /* at most 15 characters; NULL for "p4reduce" */
} p4reduce_local_options;

/* Starts an engine, and returns when all ranks have called it. Ranks are processes of one user in the same network and
 * process namespaces, or threads of one process. p4reduce_free ends the engine. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_local(const p4reduce_membership *membership,
                                                  const p4reduce_local_options *options, p4reduce_error *error);

/* Starts an engine of a job over several hosts, if the ranks of a host share one stream (`sharing` and `hosts` of the
 * membership).
 *
 * The lowest rank of a host is its leader, and alone uses the network. `options` are those of p4reduce_open; the other
 * ranks' are ignored. In `local`, `copies` has no effect, and `rendezvous` must differ between hosts if they share a
 * network namespace. The counters of packets are the leader's, and its blocks_sent are those of the whole host. All
 * other counters are the rank's own.
 *
 * Returns when all ranks of the host have called it. p4reduce_free ends the engine. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_sharing(const p4reduce_membership *membership,
                                                    const p4reduce_options *options,
                                                    const p4reduce_local_options *local, p4reduce_error *error);

/* Allocates zeroed memory that other ranks of the host may map. If a tensor lies in it, they read its values and write
 * the sums there, without copies. They access it only while an operation of an engine of p4reduce_open_local is under
 * way. Otherwise it is ordinary memory. A forked child shares it. p4reduce_shared_free frees it. Returns NULL on
 * error. */
P4REDUCE_API void *p4reduce_shared_new(size_t bytes, p4reduce_error *error);

/* Frees memory of p4reduce_shared_new. No operation may be under way in it. NULL is accepted. */
P4REDUCE_API void p4reduce_shared_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif
