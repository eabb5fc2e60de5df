# SPDX-License-Identifier: Apache-2.0
"""The errors that end a job, made from the packets that report them."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.errors import JobAborted, MismatchError
from p4reduce.protocol.fingerprint import same_operation
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Task
from p4reduce.protocol.packet import Packet
from p4reduce.protocol.slot import Slot

_MOST_NAMED = 8

REASONS = {
    1: "its process or its connection is gone, or it has failed",
    2: "it did not come back to the controller",
    3: "while others stayed",
    4: "the controller was stopped",
    5: "a switch has lost the job's state",
    6: "a join was refused",
    7: "some rank never came",
    8: "a switch did not take the job",
    9: "too few slots are free",
    30: "its tenant's quota is used up",
    31: "a user has ended it",
    40: "an operator has ended it",
}
"""Reasons of an ABORT, by number: `AbortReason` of the control service."""


def mismatch(membership: Membership, packet: Packet, tasks: Sequence[Task], slot: Slot | None) -> MismatchError:
    """Return the error for an ERROR packet. tasks: those under way here. slot: the packet's, if the job has it."""
    held, other = packet.fingerprint, packet.keys[0]
    involved = [t for t in tasks if same_operation(t.fingerprint, held) or same_operation(t.fingerprint, other)]
    here = ", ".join(f"operation {t.counter}, {t.operation!r}, has {t.fingerprint:08x}" for t in involved or tasks[:1])
    named = membership.ranks(1 << packet.worker)
    who = f"rank {named[0]}" if named else "a rank whose number is not known"
    if same_operation(held, other):
        what = "ranks disagree on the lanes of a round"
        advice = "Check that all ranks run the same version, and that no machine is faulty"
    else:
        what = "ranks call different operations"
        advice = (
            "Check that all ranks call the same collectives in the same order, with the same number of elements, dtype "
            "and reduction"
        )
    return MismatchError(
        f"{what}: {who} sent fingerprint {other:08x}, the ranks before it {held:08x} (slot {packet.slot >> 1}, round "
        f"{packet.seq}). {_verdict(membership, packet, named, slot)}On this rank, {membership.rank}, "
        f"{here or 'no operation is under way'}. {advice}"
    )


def _verdict(membership: Membership, packet: Packet, named: tuple[int, ...], slot: Slot | None) -> str:
    """Return a sentence that says which rank is wrong, "" if this rank cannot tell.

    This rank can rely on a round's lanes, which it has from the switch. It cannot rely on its operation, which it may
    be the only rank to call, unless the switch has given it the round's sums or another rank sent the same one.
    """
    own = _own_fingerprint(packet, slot)
    others = [rank for rank in range(membership.world_size) if rank != membership.rank and rank not in named]
    if own is None or slot is None:
        return ""
    alone = packet.seq == slot.seq and not same_operation(packet.fingerprint, packet.keys[0])
    if own == packet.fingerprint:
        if alone:
            return ""
        return f"This rank agrees with the ranks before it, so {_one_of(named or others)} is wrong. "
    if own != packet.keys[0]:
        return "This rank agrees with neither. "
    if membership.rank in named:
        return f"So this rank is wrong, or {_one_of(others)} is. "
    if (alone and not named) or not others:
        return ""
    return f"This rank agrees with the later one, so {_one_of(others)} is wrong. "


def _own_fingerprint(packet: Packet, slot: Slot | None) -> int | None:
    """Return this rank's fingerprint of the packet's round, if it is the slot's present round or the one before."""
    if slot is None:
        return None
    if slot.task is not None and packet.seq == slot.seq:
        return slot.fingerprint
    # This rank has the sums of the round before, so the switch accepted its fingerprint.
    return packet.fingerprint if packet.seq == slot.seq - 1 & 0xFFFFFFFF else None


def _one_of(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"one of ranks {', '.join(map(str, ranks))}" if len(ranks) <= _MOST_NAMED else f"one of {len(ranks)} ranks"


def implausible(membership: Membership, packet: Packet) -> MismatchError:
    """Return the error for a RESULT whose keys are impossible."""
    return MismatchError(
        f"the result of round {packet.seq} in slot {packet.slot >> 1} names next blocks that cannot exist: a rank "
        f"other than this one, {membership.rank}, announced them; packets do not tell which. Check that all ranks run "
        "the same version, and that no machine is faulty"
    )


def altered(membership: Membership, task: Task) -> MismatchError:
    """Return the error for words that came back other than this rank sent them."""
    return MismatchError(
        f"the words that rank {membership.rank} sent in operation {task.counter}, {task.operation}, came back changed: "
        "another rank added to them; packets do not tell which. Check that all ranks run the same version, and that no "
        "machine is faulty"
    )


def gone_ahead(membership: Membership, half: int, seq: int, ranks: Sequence[int]) -> MismatchError:
    """Return the error for packets of these ranks that the switch counted in an impossible round.

    No rank can be in that round before this rank has sent its packet of the round before it.
    """
    return MismatchError(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(_with_host(membership, rank) for rank in ranks)} is ahead of "
        f"the others: the switch has counted round {seq} in slot {half >> 1}, but this rank, {membership.rank}, has "
        "not finished an earlier round. Check that all ranks run the same version, and that no machine is faulty"
    )


def _with_host(membership: Membership, leader: int) -> str:
    """Return "4", or "4 (with 5, 6 of its host)" if these ranks share a stream."""
    hosts = membership.hosts or range(membership.world_size)
    others = [str(rank) for rank, host in enumerate(hosts) if host == hosts[leader] and rank != leader]
    return f"{leader} (with {', '.join(others)} of its host)" if others else str(leader)


def aborted(membership: Membership, packet: Packet) -> JobAborted:
    """Return the error for an ABORT."""
    rank = packet.aborted_by
    if rank is None:
        why = "the controller has ended it, and no rank is to blame"
    else:
        why = f"{f'this rank, {rank},' if rank == membership.rank else f'rank {rank}'} has left it"
    reason = REASONS.get(packet.abort_reason, f"reason {packet.abort_reason}")
    message = f"job {membership.job} was aborted: {why} ({reason})"
    return JobAborted(message, rank=rank)
