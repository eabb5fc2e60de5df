# SPDX-License-Identifier: Apache-2.0
"""Waits for operations and payloads."""

from __future__ import annotations

import select
import time

from p4reduce.engine.engine import Engine
from p4reduce.protocol import Operation
from p4reduce.transport import Transport
from tests.support.waiting import wait_until


def end_of(engine: Engine, operation: Operation, timeout: float = 20.0) -> BaseException | None:
    """Submit an operation, wait for its end, and return its error, or None on success."""
    ended: list[BaseException | None] = []
    engine.submit(operation, name="sum", timeout=timeout, on_end=ended.append)
    wait_until(lambda: bool(ended), "the operation to end", timeout + 10)
    return ended[0]


def receive(transport: Transport, count: int, timeout: float = 20.0) -> list[bytes]:
    """Return the next `count` payloads of a transport."""
    payloads: list[bytes] = []
    deadline = time.monotonic() + timeout
    while len(payloads) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(payloads)} of {count} payloads within {timeout} s"
        select.select([transport], [], [], left)
        payloads += transport.receive()
    return payloads
