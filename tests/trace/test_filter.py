# SPDX-License-Identifier: Apache-2.0
"""The recorder's filter passes the packets of its ports, in both families, and nothing else."""

from __future__ import annotations

import socket
import struct
from itertools import product

import pytest

from p4reduce.trace.live import only_udp
from tests.support.packet_filters import ENDS, frame_of, passes

# The bytes that no check reads: MAC addresses, what is before and behind the protocol's number, IP addresses, and those
# behind the ports.
UNREAD = {
    4: {*range(12), *range(15, 20), 22, *range(24, 34), *range(38, 42)},
    6: {*range(12), *range(14, 20), *range(21, 54), *range(58, 62)},
}
SOURCE_PORT = {4: 34, 6: 54}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("more", [0, 63])
def test_each_bit_of_the_headers(version: int, more: int) -> None:
    """The frame comes from a switch's port. Of IPv4's flags and offset the filter reads nothing."""
    program = only_udp([*range(40000, 40000 + more), 31314])
    frame = frame_of(*ENDS[version], 5, b"payload")
    ports = SOURCE_PORT[version]
    unread = UNREAD[version] | {20, 21} if version == 4 else UNREAD[version]
    assert passes(program, frame)
    for at in range(len(frame) - len(b"payload")):
        for bit in range(8):
            other = frame[:at] + bytes([frame[at] ^ 1 << bit]) + frame[at + 1 :]
            assert passes(program, other) == (at in unread or at in (ports + 2, ports + 3)), (at, bit)
    for length in range(len(frame)):
        assert passes(program, frame[:length]) == (length >= ports + 2)


@pytest.mark.parametrize("version", [4, 6])
def test_both_directions_of_each_port(version: int) -> None:
    ports = [*range(40000, 40063), 31314]
    program = only_udp(ports)
    for port in range(39998, 40066):
        to_port = frame_of(*ENDS[version], port, source_port=1)
        from_port = frame_of(*ENDS[version], 1, source_port=port)
        assert passes(program, to_port) == passes(program, from_port) == (port in ports)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("more", [0, 63])
def test_tags_are_passed_over(version: int, more: int) -> None:
    """Frames that a switch sends to hosts in VLANs still have their tags here."""
    program = only_udp([*range(40000, 40000 + more), 31314])
    for outer, inner in product((0x8100, 0x88A8, 0x9100), (0x8100, 0x88A8, 0x9100, None)):
        tags = b"".join(struct.pack("!HH", kind, 20) for kind in (outer, inner) if kind is not None)
        for port, wanted in ((31314, True), (31315, False)):
            frame = frame_of(*ENDS[version], port, b"payload", source_port=1)
            assert passes(program, frame[:12] + tags + frame[12:]) == wanted
            assert not passes(program, frame[:12] + tags[:-4] + struct.pack("!HH", 0x0806, 20) + frame[12:])
        tcp = bytearray(frame_of(*ENDS[version], 31314))
        tcp[{4: 23, 6: 20}[version]] = socket.IPPROTO_TCP
        assert not passes(program, tcp[:12] + tags + tcp[12:])
