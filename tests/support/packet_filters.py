# SPDX-License-Identifier: Apache-2.0
"""Filters of packet sockets, run by the kernel at the end of a pair of Unix sockets, and frames for them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from p4reduce.transport.addresses import packed
from p4reduce.transport.frames import frame_headers
from p4reduce.transport.packet_filter import Instruction, attach

MAC = bytes(6)
ENDS = {4: ("10.0.0.254", "10.0.0.1"), 6: ("fd00::fe", "fd00::1")}


def passes(program: Sequence[Instruction], frame: bytes) -> bool:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        attach(receiver, list(program))
        sender.send(frame)
        try:
            return receiver.recv(2000, socket.MSG_DONTWAIT) == frame
        except BlockingIOError:
            return False


def frame_of(source: str, destination: str, port: int, payload: bytes = b"", *, source_port: int = 31314) -> bytes:
    return frame_headers((MAC, packed(source), source_port), (MAC, packed(destination), port), len(payload)) + payload
