# SPDX-License-Identifier: Apache-2.0
"""The least time of a case: its bytes on a worker's link, or without links, its bytes in memory."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES, MAX_GROWTH

ETHERNET = 8 + 14 + 4 + 12
"""Bytes of preamble with its delimiter, header, frame check sequence and inter-frame gap."""
AROUND_PAYLOAD = ETHERNET + 20 + 8
"""Bytes on the wire around a UDP payload."""
AGGREGATION_HEADER = 18
_TCP_PAYLOAD = 1500 - 20 - 32
"""The payload of a full segment, with time stamps."""
_TENSOR_BYTES = 256 << 20
_COPIED_BYTES = 64 << 20
_PAYLOAD = AGGREGATION_HEADER + 4 * DEFAULT_LANES + 4 * DEFAULT_LANES * DEFAULT_BLOCK_SIZE
"""The UDP payload of a full packet."""
_SUPER_PACKET = 60
"""The largest number of whole packets that the kernel takes in one call."""
_UDP_SEGMENT, _UDP_GRO = 103, 104  # linux/udp.h's


@dataclass(frozen=True)
class Traffic:
    """The traffic of the worker that has most: bytes on the wire in each direction, and packets in each direction."""

    sent: int
    received: int
    rounds: int

    def seconds(self, bits_per_second: float) -> float:
        """Return the time on a link with this rate in each direction."""
        return max(self.sent, self.received) * 8 / bits_per_second

    @property
    def payload(self) -> int:
        """The bytes of UDP payloads, in both directions together."""
        return self.sent + self.received - 2 * self.rounds * AROUND_PAYLOAD


def traffic(
    masks: npt.NDArray[np.bool_],
    slots: int,
    lanes: int = DEFAULT_LANES,
    block_size: int = DEFAULT_BLOCK_SIZE,
    max_growth: int = MAX_GROWTH,
) -> Traffic:
    """Return the traffic of the protocol without loss; `masks`: non-zero blocks, shape (workers, blocks).

    A slot needs one round to announce its blocks. Then it needs as many rounds as the longest stream of its lanes has
    blocks in the union. In a round, a worker sends a header, the values of its own non-zero blocks, and the zeros that
    the switch needs as room for its answer. It receives a header and the union.
    """
    workers, blocks = masks.shape
    used = max(1, min(slots, -(-blocks // lanes)))
    length = max(1, -(-blocks // (used * lanes)))
    padded = np.zeros((workers, length * used * lanes), np.bool_)
    padded[:, :blocks] = masks
    striped = padded.reshape(workers, length, used, lanes)
    union = striped.any(axis=0)
    rounds = used + int(union.sum(axis=0).max(axis=-1).sum())
    # The packet of each block, numbered by round and slot.
    packet = (np.cumsum(union, axis=0) - 1) * used + np.arange(used)[:, None]
    active = np.bincount(packet[union], minlength=length * used)
    most = 0
    for own in striped:
        present = np.bincount(packet[own], minlength=length * used)
        most = max(most, int(np.maximum(present, active - max_growth // (4 * block_size)).sum()))
    header = AROUND_PAYLOAD + AGGREGATION_HEADER + 4 * lanes
    return Traffic(
        sent=rounds * header + most * 4 * block_size,
        received=rounds * header + int(union.sum()) * 4 * block_size,
        rounds=rounds,
    )


def ring(tensor_bytes: int, workers: int) -> Traffic:
    """Return the traffic of a dense ring allreduce over TCP, in full segments and without acknowledgements.

    Each direction carries 2 (n - 1) / n of the tensor, the least of all dense allreduces between hosts (Patarasu and
    Yuan, JPDC 2009).
    """
    payload = -(-2 * (workers - 1) * tensor_bytes // workers)
    segments = -(-payload // _TCP_PAYLOAD)
    sent = payload + segments * (ETHERNET + 1500 - _TCP_PAYLOAD)
    return Traffic(sent=sent, received=sent, rounds=segments)


@dataclass(frozen=True)
class Memory:
    """The rates of this machine's memory, with all processors together, in bytes per second."""

    read: float
    written: float
    copied: float
    """The rate of UDP payloads into the kernel and out again, in full packets and few calls, as on loopback."""

    def seconds(self, read: int, *, written: int = 0, copied: int = 0) -> float:
        """Return the time to read and write so many bytes of tensors, and to copy so many payloads between processes.

        The times add up, because the same processors do all of it.
        """
        return read / self.read + written / self.written + copied / self.copied


def memory(users: int, repeat: int = 5) -> Memory:
    """Measure the rates, as the best of a few runs, with a thread for each user but at most one for each processor."""
    threads = max(1, min(users, os.cpu_count() or 1))
    parts = np.array_split(np.ones(_TENSOR_BYTES // 8, np.int64), threads)
    pairs = [_pair() for _ in range(threads)]
    try:
        with ThreadPoolExecutor(threads) as pool:  # both release the interpreter's lock
            read = min(_best(pool, reduce, parts, repeat) for reduce in (np.max, np.bitwise_or.reduce))
            written = min(_best(pool, fill, parts, repeat) for fill in (_fill, _set))
            copied = _best(pool, _copy, pairs, repeat)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
    return Memory(_TENSOR_BYTES / read, _TENSOR_BYTES / written, threads * _COPIED_BYTES / copied)


def _best(pool: ThreadPoolExecutor, work: Callable[[Any], object], parts: Sequence[Any], repeat: int) -> float:
    """Return the seconds to do all parts in parallel, as the best of a few runs."""
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        list(pool.map(work, parts))
        best = min(best, time.perf_counter() - started)
    return best


def _fill(part: npt.NDArray[np.int64]) -> None:
    part.fill(1)


def _set(part: npt.NDArray[np.int64]) -> None:
    ctypes.memset(part.ctypes.data, 1, part.nbytes)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return a sender and a receiver on loopback, with super-packets if the kernel has them."""
    sender, receiver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind(("127.0.0.1", 0))
    sender.connect(receiver.getsockname())
    receiver.settimeout(10)
    try:
        receiver.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        sender.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD)
    except OSError:  # without them, a super-packet is one large datagram, which takes no longer
        pass
    return sender, receiver


def _copy(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    packets, room = bytes(_SUPER_PACKET * _PAYLOAD), bytearray(1 << 16)
    for _ in range(-(-_COPIED_BYTES // len(packets))):
        sender.send(packets)
        missing = len(packets)
        while missing > 0:
            missing -= receiver.recv_into(room)
