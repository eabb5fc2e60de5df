# SPDX-License-Identifier: Apache-2.0
"""Packets from files of tcpdump, dumpcap or Wireshark: pcap and pcapng, also compressed with gzip."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logging.getLogger("scapy.runtime").setLevel(logging.ERROR)  # it warns of what it would need to send packets

from scapy.error import Scapy_Exception  # noqa: E402
from scapy.utils import RawPcapReader  # noqa: E402

from p4reduce.errors import P4ReduceError  # noqa: E402
from p4reduce.trace.frames import Datagram, datagram  # noqa: E402


def read(file: Path) -> list[Datagram]:
    """The aggregation packets in it. Raises P4ReduceError for what is no capture."""
    try:
        return list(_datagrams(file))
    except (Scapy_Exception, EOFError) as error:
        raise P4ReduceError(f"{file}: is not a capture that can be read (pcap or pcapng): {error}") from error
    except OSError as error:
        raise P4ReduceError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise P4ReduceError(f"{file}: {error}") from error


def _datagrams(file: Path) -> Iterator[Datagram]:
    with RawPcapReader(str(file)) as reader:
        for frame, metadata in reader:
            link_type = _link_type(reader, metadata)
            found = datagram(_time(reader, metadata), link_type, frame, wire_length=metadata.wirelen)
            if found is not None:
                yield found


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
