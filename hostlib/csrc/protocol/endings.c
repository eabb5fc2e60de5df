// SPDX-License-Identifier: Apache-2.0
#include "protocol/endings.h"

#include "base/membership.h"
#include "base/structures.h"

#include <inttypes.h>
#include <stdio.h>

enum { MOST_NAMED = 8, NO_RANK = 1 << 16 };

static size_t describe_task(const struct task *task, const char *before, char *text, size_t room) {
    return (size_t)snprintf(text, room, "%soperation %" PRIu32 ", <%s of %" PRIu64 " %s>, has %08" PRIx32, before,
                            task->counter, task->reduce_op, task->request.count, task->dtype, task->fingerprint);
}

// The number in the job of the slot that a packet is of.
static unsigned slot_named(const p4reduce_membership *membership, const struct packet *packet) {
    return membership->first_slot + (packet->slot >> 1);
}

// Some of the ranks, as text: all but this one and `named`, which may be NO_RANK, and those that share streams with
// them. Empty where there are none.
static void describe_others(const p4reduce_membership *membership, unsigned named, char *text, size_t room) {
    char list[MOST_NAMED * 5 + 1] = "";
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

// Who is wrong, as far as this rank can tell. A round's lanes it has from the switch. Not so the operation, of which it
// may be the only one that calls it, unless the switch has given it the round's sums or another rank came with the same.
static void give_verdict(const p4reduce_membership *membership, const struct packet *packet, unsigned named,
                         const struct slot *slot, char *text, size_t room) {
    char others[64];
    describe_others(membership, named, others, sizeof others);
    uint32_t own;
    if (slot != NULL && slot->task != NULL && packet->seq == slot->seq)
        own = slot->fingerprint;
    else if (slot != NULL && packet->seq == slot->seq - 1)
        own = packet->fingerprint; // the switch has given this rank the round's sums
    else
        return;
    const bool alone = packet->seq == slot->seq && !same_operation(packet->fingerprint, packet_key(packet, 0));
    if (own == packet->fingerprint) {
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

void endings_mismatch(const p4reduce_membership *membership, const struct packet *packet, const struct task *oldest,
                      const struct slot *slot, p4reduce_error *error) {
    const uint32_t held = packet->fingerprint, other = packet_key(packet, 0);
    char here[300] = "";
    size_t used = 0;
    for (const struct task *task = oldest; task != NULL && used < sizeof here; task = task->next)
        if (same_operation(task->fingerprint, held) || same_operation(task->fingerprint, other))
            used += describe_task(task, used ? ", " : "", here + used, sizeof here - used);
    if (!used && oldest != NULL)
        used = describe_task(oldest, "", here, sizeof here);
    char who[40] = "a rank whose number is not known", verdict[140] = "";
    const unsigned named =
        packet->worker < membership_workers(membership) ? membership_rank(membership, packet->worker) : NO_RANK;
    if (named != NO_RANK)
        snprintf(who, sizeof who, membership->sharing ? "a rank of rank %u's host" : "rank %u", named);
    give_verdict(membership, packet, named, slot, verdict, sizeof verdict);
    const bool same = same_operation(held, other);
    error_fill(error, P4REDUCE_MISMATCH,
               "%s: %s sent fingerprint %08" PRIx32 ", the ranks before it %08" PRIx32 " (slot %u, round "
               "%" PRIu32 "). %sOn this rank, %" PRIu32 ", %s. Check that all ranks %s",
               same ? "ranks disagree on the lanes of a round" : "ranks call different operations", who, other,
               held, slot_named(membership, packet), packet->seq, verdict, membership->rank,
               used ? here : "no operation is under way",
               same ? "run the same version, and that no machine is faulty"
                    : "call the same collectives in the same order, with the same number of elements, dtype and "
                      "reduction");
}

void endings_implausible(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error) {
    error_fill(error, P4REDUCE_MISMATCH,
               "the result of round %" PRIu32 " in slot %u names next blocks that cannot exist: a rank other than "
               "this one, %" PRIu32 ", announced them; packets do not tell which. Check that all ranks run the same "
               "version, and that no machine is faulty",
               packet->seq, slot_named(membership, packet), membership->rank);
}

void endings_altered(const p4reduce_membership *membership, const struct task *task, p4reduce_error *error) {
    error_fill(error, P4REDUCE_MISMATCH,
               "the words that rank %" PRIu32 " sent in operation %" PRIu32 ", <%s of %" PRIu64 " %s>, came back "
               "changed: another rank added to them; packets do not tell which. Check that all ranks run the same "
               "version, and that no machine is faulty",
               membership->rank, task->counter, task->reduce_op, task->request.count, task->dtype);
}

// Of an ABORT, by the number that it has: AbortReason of the control service. `number` has room for one without words.
static const char *reason_in_words(uint32_t reason, char *number, size_t room) {
    switch (reason) {
    case 1:
        return "its process or its connection is gone, or it has failed";
    case 2:
        return "it did not come back to the controller";
    case 3:
        return "while others stayed";
    case 4:
        return "the controller was stopped";
    case 5:
        return "a switch has lost the job's state";
    case 6:
        return "a join was refused";
    case 7:
        return "some rank never came";
    case 8:
        return "a switch did not take the job";
    case 9:
        return "too few slots are free";
    case 30:
        return "its tenant's quota is used up";
    case 31:
        return "a user has ended it";
    case 40:
        return "an operator has ended it";
    default:
        snprintf(number, room, "reason %" PRIu32, reason);
        return number;
    }
}

void endings_aborted(const p4reduce_membership *membership, const struct packet *packet, p4reduce_error *error) {
    char why[64] = "the controller has ended it, and no rank is to blame", number[32];
    if (packet->worker != NOBODY)
        snprintf(why, sizeof why,
                 packet->worker != membership->rank ? "rank %u has left it" : "this rank, %u, has left it",
                 packet->worker);
    error_fill(error, P4REDUCE_ABORTED, "job %" PRIu32 " was aborted: %s (%s)", membership->job, why,
               reason_in_words(packet_key(packet, 0), number, sizeof number));
    error->rank = packet->worker != NOBODY ? packet->worker : -1;
}
