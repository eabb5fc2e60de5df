# SPDX-License-Identifier: Apache-2.0
"""A transport that loses, duplicates and reorders, as its seed says."""

from __future__ import annotations

import random
from collections.abc import Sequence

from p4reduce.transport import Switch, Transport


class FaultyTransport:
    """Faults in both directions. A packet that is late comes with those of a later call."""

    def __init__(
        self, transport: Transport, seed: int, *, drop: float = 0.0, duplicate: float = 0.0, delay: float = 0.0
    ) -> None:
        self._transport = transport
        self._random = random.Random(seed)
        self._drop, self._duplicate, self._delay = drop, duplicate, delay
        self._late_out: list[bytes] = []
        self._late_in: list[bytes] = []

    @property
    def trouble(self) -> OSError | None:
        return self._transport.trouble

    @property
    def local_address(self) -> tuple[str, int]:
        return self._transport.local_address

    def fileno(self) -> int:
        return self._transport.fileno()

    def send(self, payloads: Sequence[bytes]) -> int:
        self._transport.send(self._disturb(payloads, self._late_out))
        return len(payloads)

    def receive(self) -> list[bytes]:
        return self._disturb(self._transport.receive(), self._late_in)

    def quietest(self) -> tuple[Switch, float] | None:
        return self._transport.quietest()

    def close(self) -> None:
        self._transport.close()

    def _disturb(self, payloads: Sequence[bytes], late: list[bytes]) -> list[bytes]:
        passed, late[:] = list(late), []
        for payload in payloads:
            if self._random.random() < self._drop:
                continue
            for _ in range(1 + (self._random.random() < self._duplicate)):
                (late if self._random.random() < self._delay else passed).append(payload)
        self._random.shuffle(passed)
        return passed
