// SPDX-License-Identifier: Apache-2.0
#include "protocol/job_errors.h"

#include "base/membership.h"
#include "base/structures.h"

#include <inttypes.h>
#include <stdio.h>

#define DIFFERENT_OPERATIONS "ranks call different operations"
#define CHECK_CALLS                                                                                                    \
    "Check that all ranks call the same collectives in the same order, with the same number of elements, dtype and "   \
    "reduction"
#define CHECK_VERSIONS "Check that all ranks run the same version, and that no machine is faulty"

enum { MOST_NAMED = 8, NO_RANK = 1 << 16 };

static size_t describe_task(const struct task *task, const char *before, char *text, size_t room) {
    char what[TASK_TEXT_BYTES];
    task_describe(task, what);
    return (size_t)snprintf(text, room, "%soperation %" PRIu32 ", %s, has %08" PRIx32, before, task->counter, what,
                            task->fingerprint);
}

void job_error_disagreement(uint32_t number, const char *theirs, unsigned rank, const char *own, uint32_t fingerprint,
                            p4reduce_error *error) {
    error_fill(error, P4REDUCE_MISMATCH,
               DIFFERENT_OPERATIONS ": of operation %" PRIu32 ", %s; on this rank, %u, it is %s, fingerprint %08" PRIx32
                                    ". " CHECK_CALLS,
               number, theirs, rank, own, fingerprint);
}

// Returns the number of a packet's slot in the whole job.
static unsigned slot_named(const p4reduce_membership *membership, const struct packet *packet) {
    return membership->first_slot + (packet->header.slot >> 1);
}

// Writes the other ranks as text: all except this one, `named` (which may be NO_RANK), and those that share a stream
// with either. The text is empty if there are none.
static void describe_others(const p4reduce_membership *membership, unsigned named, char *text, size_t room) {
    char list[MOST_NAMED * 6 + 1] = "";
    unsigned count = 0;
    size_t used = 0;
    for (unsigned rank = 0; rank < membership->world_size; rank++) {
        if (membership_beside(membership, rank, membership->rank) ||
            (named != NO_RANK && membership_beside(membership, rank, named)))
            continue;
        if (count++ < MOST_NAMED)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%u", used ? ", " : "", rank);
    }
    if (count == 0)
        *text = '\0';
    else if (count == 1)
        snprintf(text, room, "rank %s", list);
    else if (count <= MOST_NAMED)
        snprintf(text, room, "one of ranks %s", list);
    else
        snprintf(text, room, "one of %u ranks", count);
}

// Writes a sentence that says which rank is wrong; it is empty if this rank cannot tell. This rank can rely on a
// round's lanes, which it has from the switch. It cannot rely on its operation, which it may be the only rank to call,
// unless the switch has given it the round's sums or another rank sent the same one.
static void give_verdict(const p4reduce_membership *membership, const struct packet *packet, unsigned named,
                         const struct slot *slot, char *text, size_t room) {
    char others[64];
    describe_others(membership, named, others, sizeof others);
    uint32_t own;
    if (slot != NULL && slot->task != NULL && packet->header.seq == slot->seq)
        own = slot->fingerprint;
    else if (slot != NULL && packet->header.seq == slot->seq - 1)
        own = packet->header.fingerprint; // this rank has the round's sums, so the switch accepted its fingerprint
    else
        return;
    const bool alone =
        packet->header.seq == slot->seq && !same_operation(packet->header.fingerprint, packet_key(packet, 0));
    if (own == packet->header.fingerprint) {
        if (alone)
            return;
        if (named != NO_RANK)
            snprintf(others, sizeof others, "rank %u", named);
        snprintf(text, room, "This rank agrees with the ranks before it, so %s is wrong. ", others);
    } else if (own != packet_key(packet, 0)) {
        snprintf(text, room, "This rank agrees with neither. ");
    } else if (named == membership->rank) {
        snprintf(text, room, "So this rank is wrong, or %s is. ", others);
    } else if (others[0] && !(alone && named == NO_RANK)) {
        snprintf(text, room, "This rank agrees with the later one, so %s is wrong. ", others);
    }
}

void job_error_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                        const struct slot *slot, p4reduce_error *error) {
    const uint32_t held = packet->header.fingerprint, other = packet_key(packet, 0);
    char here[300] = "";
    size_t used = 0;
    for (const struct task *task = oldest; task != NULL && used < sizeof here; task = task->next)
        if (same_operation(task->fingerprint, held) || same_operation(task->fingerprint, other))
            used += describe_task(task, used ? ", " : "", here + used, sizeof here - used);
    if (!used && oldest != NULL)
        used = describe_task(oldest, "", here, sizeof here);
    char who[40] = "a rank whose number is not known", verdict[140] = "";
    const unsigned named = packet->header.worker < membership_workers(membership)
                               ? membership_rank(membership, packet->header.worker)
                               : NO_RANK;
    if (named != NO_RANK)
        snprintf(who, sizeof who, membership->sharing ? "a rank of rank %u's host" : "rank %u", named);
    give_verdict(membership, packet, named, slot, verdict, sizeof verdict);
    const bool same = same_operation(held, other);
    error_fill(error, P4REDUCE_MISMATCH,
               "%s: %s sent fingerprint %08" PRIx32 ", the ranks before it %08" PRIx32 " (slot %u, round "
               "%" PRIu32 "). %sOn this rank, %" PRIu32 ", %s. %s",
               same ? "ranks disagree on the lanes of a round" : DIFFERENT_OPERATIONS, who, other, held,
               slot_named(membership, packet), packet->header.seq, verdict, membership->rank,
               used ? here : "no operation is under way", same ? CHECK_VERSIONS : CHECK_CALLS);
}

void job_error_implausible(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error) {
    error_fill(error, P4REDUCE_MISMATCH,
               "the result of round %" PRIu32 " in slot %u names next blocks that cannot exist: a rank other than "
               "this one, %" PRIu32 ", announced them; packets do not tell which. " CHECK_VERSIONS,
               packet->header.seq, slot_named(membership, packet), membership->rank);
}

void job_error_altered(const p4reduce_membership *membership, const struct task *task, p4reduce_error *error) {
    char what[TASK_TEXT_BYTES];
    task_describe(task, what);
    error_fill(error, P4REDUCE_MISMATCH,
               "the words that rank %" PRIu32 " sent in operation %" PRIu32
               ", %s, came back changed: another rank added "
               "to them; packets do not tell which. " CHECK_VERSIONS,
               membership->rank, task->counter, what);
}

// Reasons of an ABORT, by number: AbortReason of the control service.
static const char *const REASONS[] = {
    [1] = "its process or its connection is gone, or it has failed",
    [2] = "it did not come back to the controller",
    [3] = "while others stayed",
    [4] = "the controller was stopped",
    [5] = "a switch has lost the job's state",
    [6] = "a join was refused",
    [7] = "some rank never came",
    [8] = "a switch did not take the job",
    [9] = "too few slots are free",
    [30] = "its tenant's quota is used up",
    [31] = "a user has ended it",
    [40] = "an operator has ended it",
};

void job_error_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error) {
    char why[64] = "the controller has ended it, and no rank is to blame", number[32];
    const uint32_t reason = packet_abort_reason(packet);
    const int32_t rank = packet_abort_rank(packet);
    snprintf(number, sizeof number, "reason %" PRIu32, reason);
    if (rank >= 0)
        snprintf(why, sizeof why,
                 (uint32_t)rank != membership->rank ? "rank %" PRId32 " has left it"
                                                    : "this rank, %" PRId32 ", has left it",
                 rank);
    const char *words = reason < sizeof REASONS / sizeof *REASONS ? REASONS[reason] : NULL;
    error_fill(error, P4REDUCE_ABORTED, "job %" PRIu32 " was aborted: %s (%s)", membership->job, why,
               words != NULL ? words : number);
    error->rank = rank;
}
