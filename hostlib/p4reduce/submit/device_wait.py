# SPDX-License-Identifier: Apache-2.0
"""The wait of a collective for a tensor that a device still computes."""

from __future__ import annotations

import time
from collections.abc import Callable

from p4reduce.engine.engine import Engine
from p4reduce.errors import CollectiveTimeout

_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3  # between two polls of a device


class DeviceWait:
    """The wait for devices, for one collective at a time, and its description for error messages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._awaited = ""  # the collective whose tensor a device has yet to compute

    def progress(self) -> str:
        """Return in words what collectives wait for. Collectives that the engine executes come before those waiting."""
        awaited = self._awaited
        if awaited and not self._engine.busy:
            return f"this rank's device has yet to compute the tensor of {awaited}"
        return self._engine.progress()

    def wait(self, name: str, limit: float, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true. Raises the engine's failure if it fails meanwhile.

        name: the collective's name, for error messages.
        limit: seconds from the end of all earlier collectives, after which it raises CollectiveTimeout.
        """
        begun = since = time.monotonic()
        self._awaited = name
        try:
            while not ready():
                self._engine.check()
                now = time.monotonic()
                if self._engine.busy:
                    since = now
                if now - since >= limit:
                    raise CollectiveTimeout(
                        f"{name} did not begin within {limit:g} s: this rank's device has yet to compute its tensor"
                    )
                time.sleep(min(max((now - begun) / 8, _SHORTEST_S), _LONGEST_S))
        finally:
            self._awaited = ""
