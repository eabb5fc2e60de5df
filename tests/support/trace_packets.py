# SPDX-License-Identifier: Apache-2.0
"""Packets of a job as a capture at its switch shows them, for tests of traces."""

from __future__ import annotations

import socket
import struct

import numpy as np

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.trace.frames import ETHERNET, Header
from p4reduce.trace.model import Trace
from p4reduce.trace.rounds import trace_of
from p4reduce.transport.addresses import family_of, packed
from p4reduce.transport.frames import frame_headers

WORKER, SWITCH = ("10.0.0.1", 40000), ("10.0.0.254", 31314)
IPV6_WORKER, IPV6_SWITCH = ("fd00::1", 40000), ("fd00::fe", 31314)
OPERATION = 0xABCDEF
END = (NO_KEY,) * 4


def address(worker: int) -> tuple[str, int]:
    return f"10.0.0.{worker + 1}", 40000 + worker


def data(ms: float, worker: int, *, slot: int = 0, seq: int = 2, active: int = 0, present: int = 0) -> Header:
    return _packet(ms, Op.DATA, address(worker), SWITCH, worker, slot, seq, active, present, END)


def result(
    ms: float, to: int, by: int, *, slot: int = 0, seq: int = 2, active: int = 0, keys: tuple[int, ...] = END
) -> Header:
    """Return a RESULT packet to a worker.

    by: the worker whose packet completed the round.
    """
    return _packet(ms, Op.RESULT, SWITCH, address(to), by, slot, seq, active, active, keys)


def status(ms: float, to: int, *, slot: int = 0, seq: int = 2, active: int = 0) -> Header:
    return _packet(ms, Op.STATUS, SWITCH, address(to), to, slot, seq, active, 0, (1, 0, 0, 0))


def key(block: int) -> int:
    """Return the key of a block, with an arbitrary exponent."""
    return block << 8 | 128


def _packet(ms: float, op: Op, source: tuple[str, int], destination: tuple[str, int], worker: int, slot: int, seq: int,
            active: int, present: int, keys: tuple[int, ...]) -> Header:  # fmt: skip
    fingerprint = OPERATION << 8 | active
    sent = 0 if op == Op.STATUS else active
    return Header(
        10**18 + round(ms * 1e6), source, destination, op, sent, present, worker, 7, 3, slot << 1 | seq & 1, seq,
        fingerprint, keys,
    )  # fmt: skip


def trace(*packets: Header) -> Trace:
    return trace_of(sorted(packets), Codec())


def send(count: int, port: int = 31314, ip: str = "127.0.0.1") -> None:
    with socket.socket(family_of(ip), socket.SOCK_DGRAM) as out:
        for number in range(count):
            out.sendto(payload(number, present=3), (ip, port))


def payload(seq: int, lanes: int = 4, block: int = 64, present: int = 0) -> bytes:
    values = np.ones((present.bit_count(), block), np.int32) if present else np.empty((0, 0), np.int32)
    active = (1 << lanes) - 1 if present else 0
    packet = Packet(Op.DATA, 7, 3, 1, seq & 1, seq, 0xABCDEF00 | active, active, present, [5] * lanes, values)
    return Codec(lanes, block).encode(packet)


def frame(content: bytes, tag: bytes = b"", *, ipv6: bool = False) -> bytes:
    if ipv6:
        ends = [(bytes(6), packed(ip), port) for ip, port in (IPV6_WORKER, IPV6_SWITCH)]
        made = frame_headers(*ends, len(content)) + content
        return made[:12] + tag + made[12:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(content), 0, 0, 64, 17, 0,
                     socket.inet_aton(WORKER[0]), socket.inet_aton(SWITCH[0]))  # fmt: skip
    udp = struct.pack("!4H", WORKER[1], SWITCH[1], 8 + len(content), 0)
    return bytes(12) + tag + b"\x08\x00" + ip + udp + content


def cooked(kind: int, content: bytes, tag: bytes = b"", interface: int = 1, *, ipv6: bool = False) -> bytes:
    """Return a frame as a capture on Linux's interface "any" contains it: with the link type 113 or 276."""
    ethernet = frame(content, tag, ipv6=ipv6)
    if kind == 113:
        return struct.pack("!H", interface) + bytes(12) + ethernet[12:]
    return ethernet[12:14] + bytes(2) + struct.pack("!I", interface) + bytes(12) + ethernet[14:]


def pcap(
    *frames: bytes, size: int = 0xFFFF, link: int = ETHERNET, magic: int = 0xA1B2C3D4, order: str = "<"
) -> list[bytes]:
    """Return the file header and the records of a capture.

    The first record is 7 units of time after a full second, the next one unit later, and so on.

    size: the bytes that are kept of each frame.
    """
    parts = [struct.pack(f"{order}I2H4I", magic, 2, 4, 0, 0, 0xFFFF, link)]
    for unit, content in enumerate(frames, 7):
        kept = content[:size]
        parts.append(struct.pack(f"{order}4I", 1000, unit, len(kept), len(content)) + kept)
    return parts
