# SPDX-License-Identifier: Apache-2.0
"""The least time that a case can take: what must cross a worker's link, or, without one, what must be read."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES, MAX_GROWTH

ETHERNET = 8 + 14 + 4 + 12
"""Bytes of preamble with its delimiter, header, frame check sequence and inter-frame gap."""
AROUND_PAYLOAD = ETHERNET + 20 + 8
"""Bytes on the wire around a UDP payload."""
AGGREGATION_HEADER = 18
_TCP_PAYLOAD = 1500 - 20 - 32
"""Of a full segment, with time stamps."""
_READ_BYTES = 256 << 20


@dataclass(frozen=True)
class Traffic:
    """Of the worker that has most: bytes on the wire each way, and packets each way."""

    sent: int
    received: int
    rounds: int

    def seconds(self, bits_per_second: float) -> float:
        """On a link that carries as much each way."""
        return max(self.sent, self.received) * 8 / bits_per_second


def traffic(
    masks: npt.NDArray[np.bool_],
    slots: int,
    lanes: int = DEFAULT_LANES,
    block_size: int = DEFAULT_BLOCK_SIZE,
    max_growth: int = MAX_GROWTH,
) -> Traffic:
    """What the protocol must send without any loss; `masks`: non-zero blocks, shape (workers, blocks).

    A slot needs one round to announce, and then as many as the longest of its lanes' streams has blocks that are not
    zero everywhere. A worker sends one header a round, the values of its own non-zero blocks, and those zeros that the
    switch needs as room for its answer; it receives one header a round and the union.
    """
    workers, blocks = masks.shape
    used = max(1, min(slots, -(-blocks // lanes)))
    length = max(1, -(-blocks // (used * lanes)))
    padded = np.zeros((workers, length * used * lanes), np.bool_)
    padded[:, :blocks] = masks
    dealt = padded.reshape(workers, length, used, lanes)
    union = dealt.any(axis=0)
    rounds = used + int(union.sum(axis=0).max(axis=-1).sum())
    # When each block's turn is, and which packet that is: (its round, its slot).
    packet = (np.cumsum(union, axis=0) - 1) * used + np.arange(used)[:, None]
    active = np.bincount(packet[union], minlength=length * used)
    most = 0
    for own in dealt:
        present = np.bincount(packet[own], minlength=length * used)
        most = max(most, int(np.maximum(present, active - max_growth // (4 * block_size)).sum()))
    header = AROUND_PAYLOAD + AGGREGATION_HEADER + 4 * lanes
    return Traffic(
        sent=rounds * header + most * 4 * block_size,
        received=rounds * header + int(union.sum()) * 4 * block_size,
        rounds=rounds,
    )


def ring(tensor_bytes: int, workers: int) -> Traffic:
    """What a ring allreduce of a dense tensor must send over TCP, in full segments, acknowledgements left out.

    2 (n - 1) / n of the tensor each way (Patarasu and Yuan, JPDC 2009): no dense allreduce between hosts needs less.
    """
    payload = -(-2 * (workers - 1) * tensor_bytes // workers)
    segments = -(-payload // _TCP_PAYLOAD)
    sent = payload + segments * (ETHERNET + 1500 - _TCP_PAYLOAD)
    return Traffic(sent=sent, received=sent, rounds=segments)


def read_bandwidth(readers: int, repeat: int = 5) -> float:
    """Bytes a second at which `readers` threads together read memory: the best of a few tries."""
    threads = max(1, min(readers, os.cpu_count() or 1))
    parts = np.array_split(np.ones(_READ_BYTES // 8, np.int64), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeat):
            started = time.perf_counter()
            list(pool.map(np.max, parts))  # releases the interpreter's lock
            best = max(best, _READ_BYTES / (time.perf_counter() - started))
    return best
