# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet, ProtocolError

LAYOUTS = [(1, 32), (2, 64), (4, 64), (8, 256), (4, 3)]


@st.composite
def packets(draw: st.DrawFn, lanes: int, block_size: int) -> Packet:
    active = draw(st.integers(0, (1 << lanes) - 1))
    present = active & draw(st.integers(0, (1 << lanes) - 1))
    words = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4))
    values = np.resize(np.array(words, np.int32), (present.bit_count(), block_size))
    u16, u32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
    return Packet(
        op=draw(st.sampled_from(Op)),
        job=draw(u16),
        generation=draw(u16),
        worker=draw(st.integers(0, 255)),
        slot=draw(u16),
        seq=draw(u32),
        fingerprint=draw(u32),
        active=active,
        present=present,
        keys=draw(st.lists(u32, min_size=lanes, max_size=lanes)),
        values=values,
    )


@pytest.mark.parametrize(("lanes", "block_size"), LAYOUTS)
@given(data=st.data())
def test_round_trip(lanes: int, block_size: int, data: st.DataObject) -> None:
    codec = Codec(lanes, block_size)
    packet = data.draw(packets(lanes, block_size))
    payload = codec.encode(packet)
    assert len(payload) == 18 + 4 * lanes + 4 * block_size * packet.present.bit_count() <= codec.largest
    for form in (payload, bytearray(payload), memoryview(payload)):
        decoded = codec.decode(form)
        np.testing.assert_array_equal(decoded.values.ravel(), packet.values.ravel())
        assert codec.encode(decoded) == payload


def test_values_are_a_view() -> None:
    payload = Codec(1, 32).encode(
        Packet(Op.DATA, 1, 1, active=1, present=1, keys=[0], values=np.ones((1, 32), np.int32))
    )
    assert Codec(1, 32).decode(payload).values.base is not None


def test_no_keys_means_nothing_follows() -> None:
    assert list(Codec(4, 64).decode(Codec(4, 64).encode(Packet(Op.HELLO, 1, 1))).keys) == [NO_KEY] * 4


def good() -> bytearray:
    values = np.zeros((2, 32), np.int32)
    return bytearray(Codec(2, 32).encode(Packet(Op.RESULT, 1, 1, active=3, present=3, keys=[0, 0], values=values)))


@pytest.mark.parametrize(
    ("offset", "byte", "message"),
    [
        (0, 0x02, "version 0: accepted is 1"),
        (0, 0x22, "version 2: accepted is 1"),
        (0, 0x10, "op 0: accepted are 1 to 8"),
        (0, 0x19, "op 9: accepted are 1 to 8"),
        (1, 0b111, "active 111, present 11: lanes are 2"),
        (1, 0b001, "active 1, present 11: lanes are 2"),
        (2, 0b001, "datagram of 282 bytes: with lanes 1 it has 154"),
    ],
)
def test_foreign_headers(offset: int, byte: int, message: str) -> None:
    payload = good()
    payload[offset] = byte
    with pytest.raises(ProtocolError, match=message):
        Codec(2, 32).decode(payload)


def test_foreign_lengths() -> None:
    payload = good()
    for length in [*range(len(payload)), len(payload) + 1, len(payload) + 4]:
        with pytest.raises(ProtocolError, match=f"datagram of {length} bytes"):
            Codec(2, 32).decode(bytes(payload[:length]).ljust(length, b"\0"))


@given(st.binary(max_size=400))
def test_any_bytes_decode_or_are_foreign(payload: bytes) -> None:
    try:
        packet = Codec(2, 32).decode(payload)
    except ProtocolError:
        return
    assert Codec(2, 32).encode(packet) == payload


def test_describes_itself() -> None:
    packet = Packet(Op.STATUS, 7, 2, worker=1, slot=9, seq=33, fingerprint=0xAB, active=1, keys=[1 << 8 | 128, NO_KEY])
    assert str(packet) == (
        "STATUS job 7.2 worker 1 slot 4.1 seq 33 fingerprint 000000ab active 1 present 0 next [1:127 -]"
    )
