# SPDX-License-Identifier: Apache-2.0
"""Packets from files of tcpdump, dumpcap or Wireshark: pcap and pcapng, also compressed with gzip."""

from __future__ import annotations

import logging
import struct
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple, cast

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)  # it warns of what it would need to send packets

from scapy.error import Scapy_Exception  # noqa: E402
from scapy.utils import RawPcapNgReader, RawPcapReader  # noqa: E402

from p4reduce.errors import P4ReduceError  # noqa: E402
from p4reduce.trace.frames import Datagram, datagram, interface_of  # noqa: E402

_SECTION = b"\n\r\r\n"
_LITTLE_ENDIAN = b"\x4d\x3c\x2b\x1a"


class Captured(NamedTuple):
    """The aggregation packets in a file, those of each interface by themselves. A packet may pass several."""

    interfaces: list[list[Datagram]]
    whole: bool
    """Whether the file ends where a packet does."""


def read(file: Path) -> Captured:
    """Raises P4ReduceError for what is no capture."""
    try:
        return _read(file)
    except (Scapy_Exception, EOFError) as error:
        raise P4ReduceError(f"{file}: is not a capture that can be read (pcap or pcapng): {error}") from error
    except OSError as error:
        raise P4ReduceError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise P4ReduceError(f"{file}: {error}") from error


def _read(file: Path) -> Captured:
    found: defaultdict[Any, list[Datagram]] = defaultdict(list)
    with RawPcapReader(str(file)) as reader:
        stream = _Stream(reader.f, reader.endian, in_blocks=isinstance(reader, RawPcapNgReader))
        reader.f = cast("Any", stream)
        for frame, metadata in reader:
            if getattr(metadata, "caplen", 0) > len(frame) and not stream.is_between_records:
                break  # the rest of it is missing
            link_type = _link_type(reader, metadata)
            one = datagram(_time(reader, metadata), link_type, frame, wire_length=metadata.wirelen)
            if one is not None:
                found[getattr(metadata, "ifname", None), interface_of(link_type, frame)].append(one)
        return Captured(list(found.values()), stream.is_between_records)


class _Stream:
    """The rest of a file, from which a reader has read the header."""

    def __init__(self, file: Any, order: str, *, in_blocks: bool) -> None:
        """order: of bytes, as `struct` has it. in_blocks: of pcapng."""
        self._file = file
        self._order = order
        self._at_start = True
        self._head = b""  # first bytes of the part that is read now
        self._left = 0  # bytes that the part lacks
        self._parts = self._blocks() if in_blocks else self._records()
        self._size = self._left = next(self._parts)

    @property
    def is_between_records(self) -> bool:
        return self._at_start and self._left == self._size

    def read(self, size: int) -> bytes:
        try:
            data = bytes(self._file.read(size))
        except EOFError:  # the end of a gzip file is missing
            self._at_start = False
            raise
        at = 0
        while at < len(data) or not self._left:
            part = data[at : at + self._left]
            at, self._left = at + len(part), self._left - len(part)
            self._head = self._head + part[: 16 - len(self._head)]
            if not self._left:
                self._size = self._left = self._parts.send(self._head)
                self._head = b""
        return data

    def close(self) -> None:
        self._file.close()

    def _records(self) -> Generator[int, bytes, None]:
        """The sizes of a pcap file's parts. Is sent the first bytes of each."""
        while True:
            self._at_start = True
            head = yield 16
            self._at_start = False
            if captured := self._number(head[8:12]):
                yield captured

    def _blocks(self) -> Generator[int, bytes, None]:
        """The same for a pcapng file."""
        while True:
            self._at_start = True
            kind = yield 4
            self._at_start = False
            length, done = (yield 4), 8
            if kind == _SECTION:
                self._order, done = ("<" if (yield 4) == _LITTLE_ENDIAN else ">"), 12
            yield max(1, self._number(length) - done)

    def _number(self, content: bytes) -> int:
        return int(struct.unpack(f"{self._order}I", content)[0])


def _link_type(reader: Any, metadata: Any) -> int:
    """Of pcapng each packet's, of pcap the file's."""
    return int(metadata.linktype if hasattr(metadata, "linktype") else reader.linktype)


def _time(reader: Any, metadata: Any) -> int:
    """ns since 1970."""
    if hasattr(metadata, "tsresol"):
        if metadata.tshigh is None:
            raise ValueError(
                "a packet without a time (a Simple Packet Block of pcapng): a trace needs all packets' times"
            )
        return int(((metadata.tshigh << 32) + metadata.tslow) * 1_000_000_000 // metadata.tsresol)
    return int(metadata.sec * 1_000_000_000 + metadata.usec * (1 if reader.nano else 1000))
