# SPDX-License-Identifier: Apache-2.0
"""How a job's slots are striped over several aggregators: slot s lives at aggregator s mod A, as its slot s div A.

The packet's slot field counts halves, 2 · slot + half, so a half stays a half. With one aggregator nothing changes.
Where a rank has T threads, thread t has the slots from t · S div T to (t + 1) · S div T - 1, which are striped.
"""

from __future__ import annotations


def slots_at_each(slots: int, aggregators: int) -> int:
    """Slots that a job of `slots` takes at every one of its aggregators; the last of them may be idle at some."""
    return -(-slots // aggregators)


def to_aggregator(half: int, aggregators: int) -> tuple[int, int]:
    """Return the aggregator of the job's `half`, and the slot field there."""
    slot, aggregator = divmod(half >> 1, aggregators)
    return aggregator, slot << 1 | half & 1


def from_aggregator(half: int, aggregator: int, aggregators: int) -> int:
    """Return the job's half that a slot field of that aggregator stands for. It may exceed the packet's 16 bits."""
    return ((half >> 1) * aggregators + aggregator) << 1 | half & 1


def first_slot(thread: int, slots: int, threads: int) -> int:
    """Of those of a job of `slots` that this thread of each rank has."""
    return thread * slots // threads


def slots_of(thread: int, slots: int, threads: int) -> int:
    """How many of those of a job of `slots` this thread of each rank has."""
    return first_slot(thread + 1, slots, threads) - first_slot(thread, slots, threads)


def to_thread(half: int, slots: int, threads: int) -> tuple[int, int]:
    """Return the thread that has the job's `half`, and which of its own that is."""
    thread = (((half >> 1) + 1) * threads - 1) // slots
    return thread, half - 2 * first_slot(thread, slots, threads)
