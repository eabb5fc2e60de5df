# SPDX-License-Identifier: Apache-2.0
"""Waiting for conditions, with deadlines."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from p4reduce.transport import Transport


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 10.0) -> None:
    """Returns when `condition` holds; AssertionError with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.001)


def receive(transport: Transport, count: int, timeout: float = 5.0) -> list[bytes]:
    """The next `count` payloads of a transport."""
    payloads: list[bytes] = []
    deadline = time.monotonic() + timeout
    while len(payloads) < count:
        patience = deadline - time.monotonic()
        assert patience > 0, f"{len(payloads)} of {count} payloads within {timeout} s"
        select.select([transport], [], [], patience)
        payloads += transport.receive()
    return payloads


def pass_time(seconds: float) -> None:
    """Lets time pass, where that is what the test is about."""
    time.sleep(seconds)
