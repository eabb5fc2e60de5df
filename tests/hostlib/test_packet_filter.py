# SPDX-License-Identifier: Apache-2.0
"""The kernel runs filters of packet sockets on frames, here at the end of a pair of Unix sockets."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.transport.addresses import packed
from p4reduce.transport.frames import UDP
from p4reduce.transport.packet_filter import Instruction, only_datagrams
from tests.support.packet_filters import ENDS, frame_of, passes

PORTS = st.integers(1, 2**16 - 1)
# The bits of a frame's bytes that the sender may choose, and the switch's port, which its address vouches for.
FREE = {
    # TOS, length and identification; flags but more fragments; TTL; checksum; source port; UDP length and checksum
    4: {**dict.fromkeys((*range(12), *range(15, 20), 22, 24, 25, 34, 35, *range(38, 42)), 0xFF), 20: 0xC0},
    # half of the traffic class; the rest, flow label and length; hop limit; source port; UDP length and checksum
    6: {**dict.fromkeys((*range(12), *range(15, 20), 21, 54, 55, *range(58, 62)), 0xFF), 14: 0x0F},
}


def program_of(source: str, destination: str, port: int) -> list[Instruction]:
    """Return the program without its first checks, two instructions each, of what a Unix socket's data lack."""
    return only_datagrams("lo", source, destination, port)[4:]


@pytest.mark.parametrize("version", [4, 6])
def test_each_bit_of_the_headers(version: int) -> None:
    program, frame = program_of(*ENDS[version], 5), frame_of(*ENDS[version], 5, b"payload")
    assert passes(program, frame)
    for at in range(len(frame) - len(b"payload")):
        for bit in range(8):
            other = frame[:at] + bytes([frame[at] ^ 1 << bit]) + frame[at + 1 :]
            assert passes(program, other) == bool(FREE[version].get(at, 0) >> bit & 1), (at, bit)
    for length in range(len(frame)):
        assert passes(program, frame[:length]) == (length >= len(frame) - len(b"payload") - UDP.size + 4)


@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from([4, 6]), PORTS)
def test_only_the_pairs_datagrams_pass(data: st.DataObject, version: int, port: int) -> None:
    ends = [str(data.draw(st.ip_addresses(v=version))) for _ in range(2)]
    changed = [str(ip_address(packed(ip)[:-1] + bytes([packed(ip)[-1] ^ 1]))) for ip in ends]
    program = program_of(*ends, port)
    assert passes(program, frame_of(*ends, port))
    assert not passes(program, frame_of(changed[0], ends[1], port))
    assert not passes(program, frame_of(ends[0], changed[1], port))
    assert not passes(program, frame_of(*ends, port ^ 1))
    assert passes(program, frame_of(ends[1], ends[0], port)) == (ends[0] == ends[1])
