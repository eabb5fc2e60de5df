# SPDX-License-Identifier: Apache-2.0
"""Waits for conditions, with deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def wait_until(condition: Callable[[], Result], what: str | Callable[[], object], within: float = 30.0) -> Result:
    """Wait until `condition` returns a true value, and return it.

    After `within` seconds, this raises AssertionError, whose message contains `what`.
    """
    deadline, pause = time.monotonic() + within, 0.001
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return result


def stays(condition: Callable[[], object], what: str | Callable[[], object], seconds: float) -> None:
    """Assert that `condition` stays true for `seconds`. The message of a failure contains `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), what() if callable(what) else what
        time.sleep(0.005)


def has_ended(process: int) -> bool:
    """Return whether no process runs under this id. A zombie counts as ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def pass_time(seconds: float) -> None:
    """Sleep, in a test whose subject is the passage of time itself."""
    time.sleep(seconds)
