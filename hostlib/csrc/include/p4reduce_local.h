/* SPDX-License-Identifier: Apache-2.0 */
/* An engine for a job whose ranks are all on one host: they reduce in memory that they share, and send no packets. All
 * that p4reduce.h says of engines holds, and results have the same bits as those of a switch. */
#ifndef P4REDUCE_LOCAL_API_H
#define P4REDUCE_LOCAL_API_H

#include "p4reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct p4reduce_local_options {
    uint32_t size;
    uint32_t copies;     /* not 0: values are copied through shared memory, even where ranks could read each other's */
    const char *meeting; /* by which ranks find each other: at most 64 characters that nobody else knows */
    double timeout;      /* seconds within which all ranks have to be there */
    const char *thread_name; /* at most 15 characters; NULL for "p4reduce" */
} p4reduce_local_options;

/* Starts an engine; returns when all ranks have. Ranks are processes of one user in the same network and process
 * namespaces, or threads of one. Returns NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_local(const p4reduce_membership *membership,
                                                  const p4reduce_local_options *options, p4reduce_error *error);

/* Starts an engine of a job over several hosts, of which ranks share one stream: as `sharing` and `hosts` of the
 * membership say. The lowest rank of a host leads its stream, and has the network: `options` are those of p4reduce_open,
 * and not looked at for the other ranks. Of `local`, `copies` means nothing here, and `meeting` is the host's own: ranks
 * of other hosts have another, where they could be taken for this one's. Statistics of packets are the leader's, whose
 * blocks_sent are those of the host; the others' are their own. Returns when all ranks of the host have started theirs;
 * NULL on error. */
P4REDUCE_API p4reduce_engine *p4reduce_open_sharing(const p4reduce_membership *membership,
                                                    const p4reduce_options *options,
                                                    const p4reduce_local_options *local, p4reduce_error *error);

/* Memory of zeros, as from malloc, that other ranks of the host may map: they add up tensors that lie in it where they
 * lie, and write the sums to them, while an operation of an engine of p4reduce_open_local is under way, and at no other
 * time. For any other use it is memory as any other. A process that is forked shares it. NULL on error. */
P4REDUCE_API void *p4reduce_shared_new(size_t bytes, p4reduce_error *error);

/* NULL is accepted. No operation may be under way in the memory. */
P4REDUCE_API void p4reduce_shared_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif
