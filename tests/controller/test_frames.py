# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.constants import AGGREGATION_PORT, Op
from p4reduce.protocol.packet import Codec, Packet, pack
from p4reduce_controller.p4runtime import program
from p4reduce_controller.switches import frames
from p4reduce_controller.switches.frames import Endpoint, build, format_mac, parse, parse_mac

CODEC = Codec(4, 2)
WORDS = st.integers(0, 2**32 - 1)
BYTES = st.integers(0, 255)
SHORTS = st.integers(0, 2**16 - 1)
ENDPOINTS = st.builds(
    Endpoint,
    st.binary(min_size=6, max_size=6).map(format_mac),
    st.ip_addresses(v=4).map(str),
    st.just(AGGREGATION_PORT),
)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    active = draw(st.integers(0, 15))
    present = active & draw(BYTES)
    values = np.arange(2 * present.bit_count(), dtype=np.int32).reshape(-1, 2)
    numbers = (draw(one) for one in (st.sampled_from(Op), SHORTS, SHORTS, BYTES, SHORTS, WORDS, WORDS))
    return Packet(*numbers, active, present, draw(st.tuples(*[WORDS] * 4)), values)


PACKETS = packets()


@given(PACKETS, ENDPOINTS, ENDPOINTS, st.binary(max_size=20))
def test_what_is_built_is_parsed(packet: Packet, source: Endpoint, destination: Endpoint, padding: bytes) -> None:
    parsed = parse(build(packet, source, destination) + padding, CODEC)
    assert parsed is not None
    assert parsed[0] == source
    assert pack(parsed[1]) == pack(packet)


@given(st.binary(max_size=120))
def test_noise_is_not_parsed(noise: bytes) -> None:
    assert parse(noise, CODEC) is None


@given(PACKETS, st.integers(0, 75))  # 76 is a whole one without values
def test_a_truncated_frame_is_not_parsed(packet: Packet, length: int) -> None:
    whole = Endpoint("02:00:00:00:00:01", "10.0.0.1", AGGREGATION_PORT)
    assert parse(build(packet, whole, whole)[:length], CODEC) is None


@given(PACKETS, ENDPOINTS)
def test_the_ipv4_header_is_right(packet: Packet, source: Endpoint) -> None:
    frame = build(packet, source, source)
    header = frame[14:34]
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert int.from_bytes(header[2:4], "big") == len(frame) - 14


def test_the_nonce_of_a_hello() -> None:
    assert Packet(8, fingerprint=0x01234567, keys=(0x89ABCDEF, 0, 0, 0)).nonce == 0x0123456789ABCDEF


@pytest.mark.parametrize("text", ["", "02:00", "02:00:00:00:00:100", "x2:00:00:00:00:01", "02:00:00:00:00:00:01"])
def test_a_wrong_mac_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="six hexadecimal bytes") as caught:
        parse_mac(text)
    assert repr(text) in str(caught.value)


def test_the_mac_of_a_udp_peer() -> None:
    assert frames.synthetic_mac("127.0.0.1") == "02:00:7f:00:00:01"


def test_the_compiled_program_has_a_layout() -> None:
    compiled = program.Program(program.load_schema())
    assert compiled.layout.lanes in (1, 2, 4, 8)
    assert compiled.layout.block_size in (32, 64, 128, 256)


def test_a_directory_without_a_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(program.PipelineError, match=f"{tmp_path}/p4info.txtpb"):
        program.load_schema(tmp_path)
