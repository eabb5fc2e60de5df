// SPDX-License-Identifier: Apache-2.0
#include "endings.h"

#include "membership.h"
#include "structures.h"

#include <inttypes.h>
#include <stdio.h>

static size_t describe_task(const struct task *task, const char *before, char *text, size_t room) {
    return (size_t)snprintf(text, room, "%soperation %" PRIu32 ", <%s of %" PRIu64 " %s>, has %08" PRIx32, before,
                            task->counter, task->reduce_op, task->request.count, task->dtype, task->fingerprint);
}

void endings_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                      p4reduce_error *error) {
    const uint32_t index = packet->slot >> 1, held = packet->fingerprint, other = packet_key(packet, 0);
    char here[400] = "";
    size_t used = 0;
    for (const struct task *task = oldest; task != NULL && used < sizeof here; task = task->next)
        if (task->fingerprint == held || task->fingerprint == other)
            used += describe_task(task, used ? ", " : "", here + used, sizeof here - used);
    if (!used && oldest != NULL)
        used = describe_task(oldest, "", here, sizeof here);
    char who[40] = "a rank at another switch";
    if (packet->worker < membership_workers(membership))
        snprintf(who, sizeof who, "rank %u", membership_rank(membership, packet->worker));
    error_fill(error, P4REDUCE_MISMATCH,
               "ranks call different operations: %s came with fingerprint %08" PRIx32
               ", those before it with %08" PRIx32 " (slot %" PRIu32 ", round %" PRIu32 "). On this rank, %" PRIu32
               ", %s. Check that all ranks call the same collectives in the same order, with the same number of "
               "elements, dtype and reduction",
               who, other, held, index, packet->seq, membership->rank, used ? here : "no operation is under way");
}

void endings_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error) {
    char why[64] = "the controller has ended it, and no rank is to blame";
    if (packet->worker != NOBODY)
        snprintf(why, sizeof why,
                 packet->worker != membership->rank ? "rank %u has left it" : "this rank, %u, has left it",
                 packet->worker);
    error_fill(error, P4REDUCE_ABORTED, "job %" PRIu32 " was aborted: %s (reason %" PRIu32 ")", membership->job, why,
               packet_key(packet, 0));
    error->rank = packet->worker != NOBODY ? packet->worker : -1;
}
