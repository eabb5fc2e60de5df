# SPDX-License-Identifier: Apache-2.0
"""Waiting for conditions, with deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


def wait_until(condition: Callable[[], Result], what: str | Callable[[], object], within: float = 30.0) -> Result:
    """Return what `condition` gives as soon as that is true. AssertionError says what was awaited, and how long."""
    deadline, pause = time.monotonic() + within, 0.001
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return result


def stays(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Assert that `condition` is true for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), what
        time.sleep(0.005)


def has_ended(process: int) -> bool:
    """Whether nothing runs with that number; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def pass_time(seconds: float) -> None:
    """Lets time pass, where that is what the test is about."""
    time.sleep(seconds)
