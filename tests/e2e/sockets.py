# SPDX-License-Identifier: Apache-2.0
"""Which sockets a process has open to others, as the kernel lists them."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTENS = "0A"  # of TCP
_ACCEPTS = 0x00010000  # of a Unix socket


@dataclass(frozen=True)
class Open:
    """`kind`: TCP, UDP, Unix or packet. `at`: "ADDRESS:PORT", a path, or an interface's number. `to`: whom it is
    connected to, where that is anybody."""

    kind: str
    at: str
    to: str = ""

    @property
    def is_for_all(self) -> bool:
        return self.at.startswith(("0.0.0.0:", "[::]:"))


def of_process(pid: int) -> set[Open]:
    """And of its children. TCP and Unix sockets that listen, all of UDP, and packet sockets."""
    pids = [pid, *_children(pid)]
    inodes = {inode for one in pids for inode in _inodes(one)}
    return {one for inode, one in _listed(pid) if inode in inodes}


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _children(int(child))


def _inodes(pid: int) -> Iterator[str]:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(file)):
                yield match[1]
        except OSError:  # closed meanwhile
            continue


def _listed(pid: int) -> Iterator[tuple[str, Open]]:
    """In its network, with the inode of each."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for row in _rows(pid, name):
            if name.startswith("udp") or row[3] == _LISTENS:
                to = _address(row[2])
                yield row[9], Open(name[:3].upper(), _address(row[1]), "" if to.endswith(":0") else to)
    for row in _rows(pid, "packet"):
        yield row[8], Open("packet", row[4])
    for row in _rows(pid, "unix"):
        if int(row[3], 16) & _ACCEPTS:
            yield row[6], Open("Unix", row[7] if len(row) > 7 else "")


def _rows(pid: int, name: str) -> Iterator[list[str]]:
    for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
        yield line.split()


def _address(text: str) -> str:
    """Of "0100007F:1E14"."""
    host, port = text.split(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[at : at + 8], 16) for at in range(0, len(host), 8)))
    if len(words) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, words)}:{int(port, 16)}"
    name = socket.inet_ntop(socket.AF_INET6, words)
    if name.startswith("::ffff:"):  # IPv4 in a socket of IPv6
        return f"{name.removeprefix('::ffff:')}:{int(port, 16)}"
    return f"[{name}]:{int(port, 16)}"
