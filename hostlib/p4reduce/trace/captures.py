# SPDX-License-Identifier: Apache-2.0
"""Packets from files of tcpdump, dumpcap or Wireshark: pcap and pcapng, also compressed with gzip.

Theory of operation. A file is read once, from its beginning, as records (pcap) or blocks (pcapng) of stated lengths.

- If the file ends between two records, it is whole.
- If it ends within a record or a gzip member, the readers raise EOFError. The packets before that point count.
- If lengths, numbers or checksums contradict each other, the readers raise ValueError. The file is refused.

A pcap file has one interface. A pcapng file has sections, each with a byte order and interfaces of its own. An
interface with a name may go on in a later section. Each description without a name is an interface of its own.

No library is used. scapy's readers apply the first section's interfaces to all sections, and python-pcapng 2.1.1 takes
some cut files for whole ones.

Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng, RFC 1952 (gzip). libpcap has the same limit for a record.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from p4reduce.errors import P4ReduceError
from p4reduce.trace.frames import Datagram, datagram, interface_of

_CHUNK = 1 << 16
_MAX_LENGTH = 16 << 20
_GZIP, _GZIP_BITS = b"\x1f\x8b", zlib.MAX_WBITS | 16
# The byte order, and a time's units in a second.
_PCAP = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
_BYTE_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_SECTION, _INTERFACE, _SIMPLE_PACKET = 0x0A0D0D0A, 1, 3
_PACKET = {2: "H2x4I", 6: "5I"}  # the obsolete Packet Block, and the Enhanced Packet Block
_NAME, _TIME_RESOLUTION, _TIME_OFFSET = 2, 9, 14  # options of an interface


class Captured(NamedTuple):
    """The aggregation packets in a file, separately for each interface. One packet may pass several interfaces."""

    interfaces: list[list[Datagram]]
    whole: bool
    """Whether the file ends at the end of a packet."""


def read(file: Path) -> Captured:
    """Return the aggregation packets of a file. Raises P4ReduceError if it is no capture, or is damaged."""
    found: defaultdict[tuple[_Interface, bytes], list[Datagram]] = defaultdict(list)
    whole = True
    try:
        with file.open("rb") as content:
            for interface, time, frame, wire_length in _frames(_Input(content)):
                one = datagram(interface.time(time), interface.link_type, frame, wire_length=wire_length)
                if one is not None:
                    found[interface, interface_of(interface.link_type, frame)].append(one)
    except EOFError:
        whole = False
    except OSError as error:
        raise P4ReduceError(f"{file}: {error.strerror or error}") from error
    except (struct.error, zlib.error) as error:
        raise P4ReduceError(f"{file}: is damaged: {error}") from error
    except ValueError as error:
        raise P4ReduceError(f"{file}: {error}") from error
    return Captured(list(found.values()), whole)


@dataclass(frozen=True)
class _Interface:
    """An interface of a capture. name: an object of its own if the file has no name."""

    name: object
    link_type: int
    units: int
    """Units of time in a second."""
    offset: int = 0
    """Seconds that are added to a time."""

    def time(self, units: int) -> int:
        """Return a time in ns since 1970, which fits into 63 bits."""
        time = self.offset * 10**9 + units * 10**9 // self.units
        if not 0 <= time < 1 << 63:
            raise ValueError("is damaged: a packet's time is before 1970 or after 2262")
        return time


_Frame = tuple[_Interface, int, bytes, int]
"""The interface, the time in its units, the bytes that were captured, and the length on the wire."""


class _Input:
    """The content of a file, decompressed."""

    def __init__(self, file: BufferedReader) -> None:
        chunks = iter(lambda: file.read(_CHUNK), b"")
        self._chunks = _decompressed(chunks) if file.peek(2).startswith(_GZIP) else chunks
        self._buffer = bytearray()

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them, or b"" at the end. Raises EOFError if only some are left."""
        while len(self._buffer) < size and (chunk := next(self._chunks, b"")):
            self._buffer += chunk
        if 0 < len(self._buffer) < size:
            raise EOFError
        return bytes(self._buffer[:size])

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises EOFError if some or all are missing."""
        data = self.peek(size)
        if len(data) < size:
            raise EOFError
        del self._buffer[:size]
        return data


def _decompressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of all members of a gzip file. Zeros may follow a member."""
    member = zlib.decompressobj(_GZIP_BITS)
    for rest in chunks:
        while rest := rest.lstrip(b"\0") if member.eof else rest:
            if member.eof:
                member = zlib.decompressobj(_GZIP_BITS)
            if data := member.decompress(rest):
                yield data
            rest = member.unused_data
    if not member.eof:
        raise EOFError


def _frames(content: _Input) -> Iterator[_Frame]:
    magic = content.peek(4)
    if magic in _PCAP:
        return _frames_of_pcap(content, *_PCAP[content.read(4)])
    if magic == _SECTION.to_bytes(4, "big"):
        return _frames_of_pcapng(content)
    raise ValueError("is not a capture that can be read (pcap or pcapng)")


def _frames_of_pcap(content: _Input, order: str, units: int) -> Iterator[_Frame]:
    (link_type,) = struct.unpack(f"{order}16xI", content.read(20))
    interface = _Interface("", link_type & 0xFFFF, units)
    while content.peek(1):
        seconds, fraction, size, wire_length = struct.unpack(f"{order}4I", content.read(16))
        if size > min(wire_length, _MAX_LENGTH):
            raise ValueError(f"is damaged: {size} of a packet's {wire_length} bytes")
        yield interface, seconds * units + fraction, content.read(size), wire_length


def _frames_of_pcapng(content: _Input) -> Iterator[_Frame]:
    order, interfaces = "", list[_Interface]()
    while head := content.peek(12):
        if head.startswith(_SECTION.to_bytes(4, "big")):
            if head[8:] not in _BYTE_ORDERS:
                raise ValueError("is damaged: a section of pcapng has no byte order")
            order, interfaces = _BYTE_ORDERS[head[8:]], []
        kind, length = struct.unpack(f"{order}2I", head[:8])
        if length % 4 or not 12 <= length <= _MAX_LENGTH or (block := content.read(length))[-4:] != head[4:8]:
            raise ValueError(f"is damaged: a block's length of {length} bytes is wrong")
        body = block[8:-4]
        if kind == _SECTION:
            (version,) = struct.unpack_from(f"{order}H", body, 4)
            if version != 1:
                raise ValueError(f"pcapng {version}: accepted is version 1")
        elif kind == _INTERFACE:
            interfaces.append(_interface(body, order))
        elif kind == _SIMPLE_PACKET:
            raise ValueError(
                "a packet without a time (a Simple Packet Block of pcapng): a trace needs all packets' times"
            )
        elif kind in _PACKET:
            number, high, low, size, wire_length = struct.unpack_from(order + _PACKET[kind], body)
            if number >= len(interfaces) or size > min(wire_length, len(body) - 20):
                raise ValueError(f"is damaged: {size} of a packet's {wire_length} bytes at interface {number}")
            yield interfaces[number], high << 32 | low, body[20 : 20 + size], wire_length


def _interface(body: bytes, order: str) -> _Interface:
    """Return the interface that an Interface Description Block describes."""
    (link_type,) = struct.unpack_from(f"{order}H6x", body)
    options, at = dict[int, bytes](), 8
    while at < len(body):
        code, size = struct.unpack_from(f"{order}2H", body, at)
        if not code:
            break
        options[code] = body[at + 4 : at + 4 + size]
        at += 4 + size + -size % 4
    (resolution,) = struct.unpack("B", options.get(_TIME_RESOLUTION, b"\6"))
    (offset,) = struct.unpack(f"{order}q", options.get(_TIME_OFFSET, bytes(8)))
    name = options.get(_NAME) or object()
    return _Interface(name, link_type, (2 if resolution & 128 else 10) ** (resolution & 127), offset)
