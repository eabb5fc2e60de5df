# SPDX-License-Identifier: Apache-2.0
"""What a packet that ends the job says."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.errors import JobAborted, MismatchError
from p4reduce.protocol.constants import NOBODY
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Task
from p4reduce.protocol.packet import Packet


def mismatch(membership: Membership, packet: Packet, tasks: Sequence[Task]) -> MismatchError:
    """Of an ERROR. tasks: those under way here."""
    index = packet.slot >> 1
    held, other = packet.fingerprint, packet.keys[0]
    involved = [task for task in tasks if task.fingerprint in (held, other)] or tasks[:1]
    here = ", ".join(f"operation {t.counter}, {t.operation!r}, has {t.fingerprint:08x}" for t in involved)
    named = membership.ranks(1 << packet.worker)
    who = f"rank {named[0]}" if named else "a rank at another switch"
    return MismatchError(
        f"ranks call different operations: {who} came with fingerprint {other:08x}, those before it "
        f"with {held:08x} (slot {index}, round {packet.seq}). On this rank, {membership.rank}, "
        f"{here or 'no operation is under way'}. Check that all ranks call the same collectives in the same "
        "order, with the same number of elements, dtype and reduction"
    )


def aborted(membership: Membership, packet: Packet) -> JobAborted:
    """Of an ABORT."""
    if packet.worker == NOBODY:
        why = "the controller has ended it, and no rank is to blame"
    else:
        own = packet.worker == membership.rank
        why = f"{f'this rank, {membership.rank},' if own else f'rank {packet.worker}'} has left it"
    message = f"job {membership.job} was aborted: {why} (reason {packet.keys[0]})"
    return JobAborted(message, rank=None if packet.worker == NOBODY else packet.worker)
