# SPDX-License-Identifier: Apache-2.0
"""Texts about the outcome of a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p4reduce_topos.faults.catalogue import Fault
from p4reduce_topos.faults.ranks import Event


def describe_end(last: Event) -> str:
    """Return the text for the last event of a rank, which is empty if the rank has printed none."""
    if "right" in last:
        retransmissions = last.get("retransmissions", 0)
        return f"{last['right']} sums, all right" + (
            f"; {retransmissions} packets were sent again" if retransmissions else ""
        )
    if "wrong" in last:
        return f"wrong sums: {last['wrong']} elements of call {last.get('call', 0) + 1}"
    if "error" in last:
        return f"{last['error']}: {last.get('message', '')}"
    return "it ended without a report" if not last else f"it has not ended: {last}"


def describe_outcome(fault: Fault) -> str:
    """Return the text for the outcome that the fault must have."""
    if fault.outcome == "sums":
        return "right sums at every rank"
    return f"{fault.outcome} at every rank that is left" + (f", which says {fault.says!r}" if fault.says else "")


def verdict(name: str, fault: Fault, ends: Mapping[int, Event], wrong: Sequence[str]) -> str:
    """Return the verdict as one sentence."""
    if not wrong:
        return f"{name}: it ended as it must, in {describe_outcome(fault)} ({len(ends)})."
    return f"{name}: it must end in {describe_outcome(fault)}, but: {'; '.join(wrong)}."
