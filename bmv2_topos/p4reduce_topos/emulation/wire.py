# SPDX-License-Identifier: Apache-2.0
"""A cable that delays, loses, duplicates and corrupts: frames that come in at one interface go out at the other.

Each frame crosses it with Ethernet's check sequence, and a receiver drops what does not agree with that, as network
cards do: so bits that flip on the way are a loss. `--unchecked` takes the check sequence away.

Started by `Network` for links that need it, as it needs nothing of the kernel, which may lack netem.
"""

from __future__ import annotations

import argparse
import heapq
import random
import select
import time
import zlib
from itertools import count

from p4reduce_targets.ports import EthPort

_FRAMES_A_TURN = 64
_LONGEST_QUEUE = 100_000  # frames that wait for their time, each way: what exceeds that is lost
_OVERTAKEN = 0.1  # share of the frames that jitter delays
_ETHERTYPE_IPV4 = b"\x08\x00"


class Way:
    """One direction. All times are seconds, all other figures shares of the frames."""

    def __init__(self, options: argparse.Namespace, to: EthPort, seed: int) -> None:
        self._options = options
        self._to = to
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, bytes]] = []
        self._number = count()

    def take(self, frame: bytes, now: float) -> None:
        options, draw = self._options, self._random.random
        if draw() < options.loss:
            return
        for _ in range(2 if draw() < options.duplicate else 1):
            copy = self._corrupted(frame) if draw() < options.corrupt else frame
            if not options.unchecked and zlib.crc32(copy) != zlib.crc32(frame):
                continue
            late = options.jitter * draw() if draw() < _OVERTAKEN else 0.0
            due = now + options.delay + late
            if len(self._waiting) < _LONGEST_QUEUE:
                heapq.heappush(self._waiting, (due, next(self._number), copy))

    def give(self, now: float) -> float | None:
        """Send what is due. Returns when more will be, or None."""
        while self._waiting and self._waiting[0][0] <= now:
            self._to.send(heapq.heappop(self._waiting)[2])
        return self._waiting[0][0] if self._waiting else None

    def _corrupted(self, frame: bytes) -> bytes:
        """With one bit that is not as it was, of the IP header or of what is in it."""
        if frame[12:14] != _ETHERTYPE_IPV4:
            return frame
        bit = self._random.randrange(14 * 8, len(frame) * 8)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


def main() -> None:
    """Pass frames until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("interfaces", nargs=2)
    for name in ("delay", "jitter", "loss", "duplicate", "corrupt"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unchecked", action="store_true")
    options = parser.parse_args()
    first, second = (EthPort(number, name) for number, name in enumerate(options.interfaces, start=1))
    ways = {first.fileno(): (first, Way(options, second, options.seed)),
            second.fileno(): (second, Way(options, first, -options.seed))}  # fmt: skip
    print("{}", flush=True)
    with select.epoll() as poll:
        for descriptor in ways:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            now = time.monotonic()
            due = [when for _, way in ways.values() if (when := way.give(now)) is not None]
            for descriptor, _ in poll.poll(max(0.0, min(due) - time.monotonic()) if due else None):
                port, way = ways[descriptor]
                arrived = time.monotonic()
                for frame in port.receive(_FRAMES_A_TURN):
                    way.take(frame, arrived)


if __name__ == "__main__":
    main()
