# SPDX-License-Identifier: Apache-2.0
"""Packets of a job as somebody at its switch sees them."""

from __future__ import annotations

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.trace.frames import Build, Header
from p4reduce.trace.model import Trace
from p4reduce.trace.rounds import trace_of

SWITCH = ("10.0.0.254", 31314)
OPERATION = 0xABCDEF
END = (NO_KEY,) * 4


def address(worker: int) -> tuple[str, int]:
    return f"10.0.0.{worker + 1}", 40000 + worker


def data(ms: float, worker: int, *, slot: int = 0, seq: int = 2, active: int = 0, present: int = 0) -> Header:
    return _packet(ms, Op.DATA, address(worker), SWITCH, worker, slot, seq, active, present, END)


def result(
    ms: float, to: int, by: int, *, slot: int = 0, seq: int = 2, active: int = 0, keys: tuple[int, ...] = END
) -> Header:
    """by: whose packet completed the round."""
    return _packet(ms, Op.RESULT, SWITCH, address(to), by, slot, seq, active, active, keys)


def status(ms: float, to: int, *, slot: int = 0, seq: int = 2, active: int = 0) -> Header:
    return _packet(ms, Op.STATUS, SWITCH, address(to), to, slot, seq, active, 0, (1, 0, 0, 0))


def key(block: int) -> int:
    """What names a block, with some exponent."""
    return block << 8 | 128


def _packet(ms: float, op: Op, source: tuple[str, int], destination: tuple[str, int], worker: int, slot: int, seq: int,
            active: int, present: int, keys: tuple[int, ...]) -> Header:  # fmt: skip
    fingerprint = OPERATION << 8 | active
    sent = 0 if op == Op.STATUS else active
    return Header(
        10**18 + round(ms * 1e6), source, destination, op, sent, present, worker, 7, 3, slot << 1 | seq & 1, seq,
        fingerprint, keys,
    )  # fmt: skip


def trace(*packets: Header) -> Trace:
    return trace_of(sorted(packets), Build())
