# SPDX-License-Identifier: Apache-2.0
"""The protocol's packets: aggregation header, one key for each lane, and the values of the lanes that are present.

Each packet is the payload of a UDP datagram. Everything is big-endian. The header takes 18 bytes, a key 4, and each
value of a lane 4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES, NO_KEY, NOBODY, PROTOCOL_VERSION, Op
from p4reduce.protocol.header import FIELDS, FIXED
from p4reduce.protocol.membership import Membership

WIRE_INT = np.dtype(">i4")
NO_VALUES = np.empty((0, 0), WIRE_INT)

LANES_OF = tuple(tuple(lane for lane in range(8) if mask >> lane & 1) for mask in range(256))
"""The lanes that are set in each mask such as `active`, lowest first."""

_OPS = frozenset(Op)
_FIELDS_BEHIND_OP = attrgetter(*(field.name for field in FIELDS[2:]))


class ProtocolError(ValueError):
    """The datagram is not a well-formed packet of this protocol."""


@dataclass(slots=True)
class Packet:
    """One packet. `values` holds int32 of shape (lanes present, block size), in any byte order."""

    op: int
    job: int = 0
    generation: int = 0
    worker: int = 0
    slot: int = 0
    seq: int = 0
    fingerprint: int = 0
    active: int = 0
    present: int = 0
    keys: Sequence[int] = ()
    values: npt.NDArray[Any] = field(default_factory=lambda: NO_VALUES, repr=False)

    @property
    def abort_secret(self) -> int:
        """The 64 bits by which an ABORT proves that the controller sent it."""
        return self.seq << 32 | self.fingerprint

    @property
    def nonce(self) -> int:
        """The 64 bits by which the controller recognises a HELLO."""
        return self.fingerprint << 32 | self.keys[0]

    @property
    def aborted_by(self) -> int | None:
        """The rank that an ABORT names, if any."""
        return self.worker if self.worker != NOBODY else (self.keys[0] >> 16) - 1 if self.keys[0] >> 16 else None

    @property
    def abort_reason(self) -> int:
        """The `AbortReason` of an ABORT."""
        return self.keys[0] & 0xFFFF

    def __str__(self) -> str:
        """Return one line for logs and failed tests."""
        name = Op(self.op).name if self.op in _OPS else f"op {self.op}"
        keys = " ".join("-" if key == NO_KEY else f"{key >> 8}:{255 - (key & 255)}" for key in self.keys)
        return (
            f"{name} job {self.job}.{self.generation} worker {self.worker} slot {self.slot >> 1}.{self.slot & 1} "
            f"seq {self.seq} fingerprint {self.fingerprint:08x} active {self.active:b} present {self.present:b} "
            f"next [{keys}]"
        )


def abort(rank: int | None, reason: int, lanes: int, **fields: Any) -> Packet:
    """Return the ABORT that names a rank. `fields`: other fields of `Packet`.

    A rank that `worker` has no number for is in the upper half of the first key, plus one.
    """
    beyond = rank is not None and rank >= NOBODY
    first_key = reason | (rank + 1) << 16 if rank is not None and beyond else reason
    worker = NOBODY if rank is None or beyond else rank
    return Packet(Op.ABORT, worker=worker, keys=(first_key,) + (0,) * (lanes - 1), **fields)


def hello(lanes: int, nonce: int, **fields: Any) -> Packet:
    """Return a HELLO with this nonce. `fields`: other fields of `Packet`."""
    keys = (nonce & 0xFFFFFFFF,) + (NO_KEY,) * (lanes - 1)
    return Packet(Op.HELLO, fingerprint=nonce >> 32, keys=keys, **fields)


@cache
def _header(lanes: int) -> struct.Struct:
    return struct.Struct(f"{FIXED.format}{lanes}I")


def pack(packet: Packet) -> bytes:
    """Return the UDP payload of `packet`, with as many keys and values as it has."""
    version_and_op = PROTOCOL_VERSION << 4 | packet.op
    header = _header(len(packet.keys)).pack(version_and_op, *_FIELDS_BEHIND_OP(packet), *packet.keys)
    return header + packet.values.astype(WIRE_INT, copy=False).tobytes() if packet.present else header


def hello_of(membership: Membership, nonce: int, **fields: Any) -> bytes:
    """Return the HELLO that shows the controller, through the switch, where this rank is.

    `fields`: other fields of `Packet`.
    """
    m = membership
    return pack(hello(m.lanes, nonce, job=m.job, generation=m.generation, worker=min(m.rank, NOBODY), **fields))


class Codec:
    """Encoder and decoder for the packets of a data plane with a given number of lanes and values in a block."""

    def __init__(self, lanes: int = DEFAULT_LANES, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        self.lanes = lanes
        self.block_size = block_size
        self._header = _header(lanes)
        self.bare = self._header.size
        """Bytes of a datagram without values."""
        self._idle_lanes = 0xFF & ~((1 << lanes) - 1)
        # Bytes of a datagram for each mask of lanes present.
        self._lengths = [self.length(mask) for mask in range(1 << lanes)]
        self.largest = self._lengths[-1]
        """Bytes of a datagram with all lanes present."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and (self.lanes, self.block_size) == (other.lanes, other.block_size)

    def __hash__(self) -> int:
        return hash((self.lanes, self.block_size))

    def length(self, present: int) -> int:
        """Return the bytes of a datagram with these lanes."""
        return self.bare + present.bit_count() * self.block_size * 4

    def header(self, data: bytes, at: int = 0) -> tuple[int, ...]:
        """Return the header's fields at this offset, version and op as one, then the keys. Nothing is checked."""
        return self._header.unpack_from(data, at)

    def encode(self, packet: Packet) -> bytes:
        """Return the UDP payload of `packet`. If it has no keys, its lanes announce that no block follows."""
        return pack(packet if packet.keys else replace(packet, keys=(NO_KEY,) * self.lanes))

    def decode(self, payload: bytes | bytearray | memoryview) -> Packet:
        """Return the packet in a UDP payload. Its values are a view. Raises ProtocolError for a malformed payload."""
        length = len(payload)
        if length < self._header.size:
            raise ProtocolError(f"datagram of {length} bytes: a packet of {self.lanes} lanes has {self._header.size}")
        first, active, present, worker, job, generation, slot, seq, fingerprint, *keys = self._header.unpack_from(
            payload
        )
        op = first & 0xF
        if first >> 4 != PROTOCOL_VERSION:
            raise ProtocolError(f"version {first >> 4}: accepted is {PROTOCOL_VERSION}")
        if op not in _OPS:
            raise ProtocolError(f"op {op}: accepted are {min(_OPS):d} to {max(_OPS):d}")
        if active & self._idle_lanes or present & ~active:
            raise ProtocolError(f"active {active:b}, present {present:b}: lanes are {self.lanes}")
        if length != self._lengths[present]:
            raise ProtocolError(f"datagram of {length} bytes: with lanes {present:b} it has {self._lengths[present]}")
        values = NO_VALUES
        if present:
            values = np.frombuffer(payload, WIRE_INT, offset=self._header.size).reshape(-1, self.block_size)
        return Packet(op, job, generation, worker, slot, seq, fingerprint, active, present, keys, values)
