# SPDX-License-Identifier: Apache-2.0
"""How a job's slots are striped over several aggregators: slot s lives at aggregator s mod A, as its slot s div A.

The packet's slot field counts halves, 2 · slot + half, so a half stays a half. With one aggregator nothing changes.
If a rank has T threads, thread t has the slots from t · S div T to (t + 1) · S div T - 1, and these are striped.
"""

from __future__ import annotations


def slots_at_each(slots: int, aggregators: int) -> int:
    """Return how many slots a job of `slots` takes at each aggregator; at some, the last of them may stay idle."""
    return -(-slots // aggregators)


def to_aggregator(half: int, aggregators: int) -> tuple[int, int]:
    """Return the aggregator of the job's `half`, and the slot field there."""
    slot, aggregator = divmod(half >> 1, aggregators)
    return aggregator, slot << 1 | half & 1


def from_aggregator(half: int, aggregator: int, aggregators: int) -> int:
    """Return the job's half for a slot field at that aggregator. The result may exceed the packet's 16 bits."""
    return ((half >> 1) * aggregators + aggregator) << 1 | half & 1


def first_slot(thread: int, slots: int, threads: int) -> int:
    """Return the first slot that a thread has, in a job of `slots`. It is the same at each rank."""
    return thread * slots // threads


def slots_of(thread: int, slots: int, threads: int) -> int:
    """Return how many slots a thread has, in a job of `slots`. The number is the same at each rank."""
    return first_slot(thread + 1, slots, threads) - first_slot(thread, slots, threads)


def to_thread(half: int, slots: int, threads: int) -> tuple[int, int]:
    """Return the thread that has the job's `half`, and the half's number within that thread."""
    thread = (((half >> 1) + 1) * threads - 1) // slots
    return thread, half - 2 * first_slot(thread, slots, threads)
