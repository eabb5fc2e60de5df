# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.constants import AGGREGATION_PORT
from p4reduce_controller.switches import frames, program
from p4reduce_controller.switches.frames import Aggregation, Endpoint, build, format_mac, hello_nonce, parse, parse_mac

LANES = 4
WORDS = st.integers(0, 2**32 - 1)
BYTES = st.integers(0, 255)
SHORTS = st.integers(0, 2**16 - 1)
ENDPOINTS = st.builds(
    Endpoint,
    st.binary(min_size=6, max_size=6).map(format_mac),
    st.ip_addresses(v=4).map(str),
    st.just(AGGREGATION_PORT),
)
PACKETS = st.builds(
    Aggregation,
    op=st.integers(0, 15),
    job=SHORTS,
    generation=SHORTS,
    worker=BYTES,
    slot=SHORTS,
    seq=WORDS,
    fingerprint=WORDS,
    active=BYTES,
    present=BYTES,
    keys=st.tuples(*[WORDS] * LANES),
    values=st.lists(WORDS, max_size=8).map(tuple),
)


@given(PACKETS, ENDPOINTS, ENDPOINTS)
def test_what_is_built_is_parsed(packet: Aggregation, source: Endpoint, destination: Endpoint) -> None:
    assert parse(build(packet, source, destination), LANES) == (source, packet)


@given(PACKETS, ENDPOINTS, st.binary(max_size=20))
def test_padding_after_the_datagram_is_not_part_of_it(packet: Aggregation, source: Endpoint, padding: bytes) -> None:
    assert parse(build(packet, source, source) + padding, LANES) == (source, packet)


@given(st.binary(max_size=120))
def test_noise_is_not_parsed(noise: bytes) -> None:
    assert parse(noise, LANES) is None


@given(PACKETS, st.integers(0, 75))  # 76 is a whole one without values
def test_a_truncated_frame_is_not_parsed(packet: Aggregation, length: int) -> None:
    whole = Endpoint("02:00:00:00:00:01", "10.0.0.1", AGGREGATION_PORT)
    assert parse(build(packet, whole, whole)[:length], LANES) is None


@given(PACKETS, ENDPOINTS)
def test_the_ipv4_header_is_right(packet: Aggregation, source: Endpoint) -> None:
    frame = build(packet, source, source)
    header = frame[14:34]
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 20, 2))
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert int.from_bytes(header[2:4], "big") == len(frame) - 14


def test_the_nonce_of_a_hello() -> None:
    assert hello_nonce(Aggregation(8, fingerprint=0x01234567, keys=(0x89ABCDEF, 0, 0, 0))) == 0x0123456789ABCDEF


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
