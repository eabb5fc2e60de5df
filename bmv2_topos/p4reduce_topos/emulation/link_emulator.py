# SPDX-License-Identifier: Apache-2.0
"""A link emulator that delays, loses, duplicates and corrupts frames between two interfaces.

A frame whose bits flip is dropped, since its Ethernet check sequence (FCS) no longer matches, as at a network card.
With `--unchecked`, corrupted frames arrive.

`Network` starts one process for each link with impairments. Unlike netem, it needs no module of the kernel.
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

_FRAMES_AT_ONCE = 64
_LONGEST_QUEUE = 100_000  # frames in flight in one direction; more are lost
_DELAYED = 0.1  # the share of frames that jitter delays, so that later ones overtake them
_ETHERTYPE_IPV4 = b"\x08\x00"


class Direction:
    """One direction of the link. Times are in seconds; other options are shares of the frames."""

    def __init__(self, options: argparse.Namespace, to: EthPort) -> None:
        self._options = options
        self._to = to
        self._random = random.Random(f"link {options.seed} to {to.number}")  # another sequence for each direction
        self._waiting: list[tuple[float, int, bytes]] = []  # a heap: when each frame is due, its number, the frame
        self._number = count()  # frames that are due at the same time keep their order

    def enqueue(self, frame: bytes, now: float) -> None:
        """Decide what happens to a frame that arrived at this time, and queue it, or copies of it."""
        options, draw = self._options, self._random.random
        if draw() < options.loss:
            return
        for _ in range(2 if draw() < options.duplicate else 1):
            copy = self._corrupted(frame) if draw() < options.corrupt else frame
            if not options.unchecked and zlib.crc32(copy) != zlib.crc32(frame):
                continue  # a network card drops it, as its FCS is wrong
            late = options.jitter * draw() if draw() < _DELAYED else 0.0
            due = now + options.delay + late
            if len(self._waiting) < _LONGEST_QUEUE:
                heapq.heappush(self._waiting, (due, next(self._number), copy))

    def send_due(self, now: float) -> float | None:
        """Send the frames that are due. Return the time at which the next one is, or None if none waits."""
        while self._waiting and self._waiting[0][0] <= now:
            self._to.send(heapq.heappop(self._waiting)[2])
        return self._waiting[0][0] if self._waiting else None

    def _corrupted(self, frame: bytes) -> bytes:
        """Return a copy of an IPv4 frame with one bit flipped after its Ethernet header. Other frames stay the same."""
        if frame[12:14] != _ETHERTYPE_IPV4:
            return frame
        bit = self._random.randrange(14 * 8, len(frame) * 8)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


def main() -> None:
    """Pass frames in both directions until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("interfaces", nargs=2)
    for name in ("delay", "jitter", "loss", "duplicate", "corrupt"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unchecked", action="store_true")
    options = parser.parse_args()
    first, second = (EthPort(number, name) for number, name in enumerate(options.interfaces, start=1))
    directions = {
        first.fileno(): (first, Direction(options, second)),
        second.fileno(): (second, Direction(options, first)),
    }
    print("{}", flush=True)  # the line that says that the process is ready
    with select.epoll() as poll:
        for descriptor in directions:
            poll.register(descriptor, select.EPOLLIN)
        while True:
            now = time.monotonic()
            due = [when for _, direction in directions.values() if (when := direction.send_due(now)) is not None]
            for descriptor, _ in poll.poll(max(0.0, min(due) - time.monotonic()) if due else None):
                port, direction = directions[descriptor]
                arrived = time.monotonic()
                for frame in port.receive(_FRAMES_AT_ONCE):
                    direction.enqueue(frame, arrived)


if __name__ == "__main__":
    main()
