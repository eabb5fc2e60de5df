# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from finsy.proto import p4i
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from p4reduce.protocol.constants import AGGREGATION_PORT, Op
from p4reduce.protocol.packet import Codec, Packet, pack
from p4reduce.transport import base
from p4reduce_controller.p4runtime.builds import BUILDS, LEAST_MTU, Build, build_for, mtu_over_ipv4
from p4reduce_controller.p4runtime.program import P4INFO, PipelineError, Program, load_schema
from p4reduce_controller.switches import frames
from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.frames import (
    Endpoint,
    build,
    format_mac,
    nonce_at_a_glance,
    parse,
    parse_mac,
    vlan_of,
)

CODEC = Codec(4, 2)
WORDS = st.integers(0, 2**32 - 1)
BYTES = st.integers(0, 255)
SHORTS = st.integers(0, 2**16 - 1)
FAMILIES = 4, 6


def endpoints(version: int) -> st.SearchStrategy[Endpoint]:
    macs = st.binary(min_size=6, max_size=6).map(format_mac)
    return st.builds(Endpoint, macs, st.ip_addresses(v=version).map(str), st.just(AGGREGATION_PORT))


PAIRS = st.sampled_from(FAMILIES).flatmap(lambda version: st.tuples(endpoints(version), endpoints(version)))


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    active = draw(st.integers(0, 15))
    present = active & draw(BYTES)
    values = np.arange(2 * present.bit_count(), dtype=np.int32).reshape(-1, 2)
    numbers = (draw(one) for one in (st.sampled_from(Op), SHORTS, SHORTS, BYTES, SHORTS, WORDS, WORDS))
    return Packet(*numbers, active, present, draw(st.tuples(*[WORDS] * 4)), values)


PACKETS = packets()


@settings(max_examples=30)
@given(PACKETS, PAIRS, st.integers(0, 4095), st.binary(max_size=20))
def test_what_is_built_is_parsed(packet: Packet, ends: tuple[Endpoint, Endpoint], vlan: int, padding: bytes) -> None:
    source, destination = ends
    frame = build(packet, source, destination, vlan)
    assert len(frame) == len(build(packet, source, destination)) + (4 if vlan else 0)
    assert vlan_of(frame) == vlan
    assert nonce_at_a_glance(frame) == (packet.nonce if packet.op == Op.HELLO else None)
    parsed = parse(frame + padding, CODEC)
    assert parsed[0] == source
    assert pack(parsed[1]) == pack(packet)


@settings(max_examples=60)
@given(PACKETS, PAIRS, st.integers(0, 4095))
def test_frames_are_as_scapys(packet: Packet, ends: tuple[Endpoint, Endpoint], vlan: int) -> None:
    """In both directions: the controller's frames, and those of a host whose kernel writes checksums."""
    source, destination = ends
    addresses = {"src": source.ip, "dst": destination.ip}
    ip = IPv6(**addresses) if ":" in source.ip else IP(**addresses, id=0)
    tag = [Dot1Q(vlan=vlan)] if vlan else []
    ports = {"sport": source.udp_port, "dport": destination.udp_port}
    head = Ether(src=source.mac, dst=destination.mac)
    for layer in tag:
        head /= layer
    assert build(packet, source, destination, vlan) == bytes(head / ip / UDP(**ports, chksum=0) / Raw(pack(packet)))
    parsed = parse(bytes(head / ip / UDP(**ports) / Raw(pack(packet))), CODEC)
    assert parsed is not None
    assert (parsed[0], pack(parsed[1])) == (source, pack(packet))


@pytest.mark.parametrize("kind", [IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrDestOpt])
def test_extension_headers_are_not_parsed(kind: type) -> None:
    head = Ether() / IPv6(src="fd00::1", dst="fd00::fe")
    tail = UDP(dport=AGGREGATION_PORT) / Raw(pack(Packet(Op.HELLO, keys=(0,) * 4)))
    assert parse(bytes(head / tail), CODEC) is not None
    assert parse(bytes(head / kind() / tail), CODEC) is None


@settings(max_examples=30)
@given(st.binary(max_size=140))
def test_noise_is_not_parsed(noise: bytes) -> None:
    assert parse(noise, CODEC) is None
    for ether_type in (b"\x81\x00", b"\x08\x00", b"\x86\xdd", b"\x81\x00\x00\x05\x86\xdd"):
        assert parse(noise[:12] + ether_type + noise, CODEC) is None
        nonce_at_a_glance(noise[:12] + ether_type + noise)
    assert 0 <= vlan_of(noise) < 4096


@settings(max_examples=30)
@given(PACKETS, PAIRS, st.data())
def test_a_truncated_frame_is_not_parsed(packet: Packet, ends: tuple[Endpoint, Endpoint], data: st.DataObject) -> None:
    frame = build(packet, *ends)
    assert parse(frame[: data.draw(st.integers(0, len(frame) - 1))], CODEC) is None


@settings(max_examples=30)
@given(PACKETS, endpoints(4))
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
    assert frames.synthetic_mac("::1") == "06:00:00:00:00:01"
    networks = [f"{first}:{second}:{third}:{fourth}" for first in ("fd00", "2001") for second in (0, 1, 2, "db8")
                for third in (0, 1, 2) for fourth in (0, 1, 2, "ff00")]  # fmt: skip
    ips = [f"{network}::{host}" for network in networks for host in ("1", "fe", "5054:ff:fe12")]
    assert len({frames.synthetic_mac(ip) for ip in ips}) == len(ips)


def test_addresses_with_ports_are_unambiguous() -> None:
    mac = "02:00:00:00:00:01"
    assert [str(Endpoint(mac, ip, 5)) for ip in ("10.0.0.1", "fd00::fe")] == ["10.0.0.1:5", "[fd00::fe]:5"]


def test_a_directory_without_a_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"{tmp_path}/p4info.txtpb"):
        load_schema(tmp_path)


def test_a_directory_has_one_device_config(tmp_path: Path) -> None:
    """It is for BMv2, sim and native, or for Tofino."""
    shutil.copy(COMPILED / P4INFO, tmp_path)
    with pytest.raises(PipelineError, match=f"{tmp_path} has neither a p4reduce.json .* nor a p4reduce.bin"):
        load_schema(tmp_path)
    (tmp_path / "p4reduce.bin").write_bytes(b"\x0a\x08p4reduce")
    assert load_schema(tmp_path).p4blob == b"\x0a\x08p4reduce"
    (tmp_path / "p4reduce.json").touch()
    with pytest.raises(PipelineError, match=r"p4reduce.json and p4reduce.bin, programs for different targets"):
        load_schema(tmp_path)


# --- what P4Info says of a build -------------------------------------------------------------------------------------


COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
SUMS = re.compile(r"\.lane(\d+)\.value(\d+)\.sums$")


def renamed(folder: Path, rename: Callable[[str], str | None]) -> Program:
    """Return the shipped program with renamed registers. `rename` returns None for a register to leave out."""
    shutil.copytree(COMPILED, folder, dirs_exist_ok=True)
    info = text_format.Parse((folder / P4INFO).read_text(), p4i.P4Info())
    registers = list(info.registers)
    del info.registers[:]
    for register in registers:
        name = rename(register.preamble.name)
        if name is not None:
            register.preamble.name = register.preamble.alias = name
            info.registers.append(register)
    (folder / P4INFO).write_text(text_format.MessageToString(info))
    return Program(load_schema(folder))


def test_a_register_of_pairs_holds_two_values(tmp_path: Path) -> None:
    """The layout is that on Tofino: one lane of 64 values in 32 registers."""

    def pairs(name: str) -> str | None:
        found = SUMS.search(name)
        if found is None:
            return name
        return name.replace("value", "pair") if found[1] == "0" and int(found[2]) < 32 else None

    layout = renamed(tmp_path, pairs).layout
    assert (layout.lanes, layout.block_size, layout.slots) == (1, 64, 512)


@pytest.mark.parametrize("missing", [r"lane2\.value7\.sums", r"\.sums"])
def test_missing_registers_are_an_error(tmp_path: Path, missing: str) -> None:
    with pytest.raises(PipelineError, match="lacks the registers"):
        renamed(tmp_path, lambda name: None if re.search(missing, name) else name)


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.folder)
def test_what_is_installed_is_as_described(build: Build) -> None:
    layout = Program(load_schema(mtu=build.mtu)).layout
    assert (layout.lanes, layout.block_size, layout.mtu("10.0.0.1")) == (build.lanes, build.block_size, build.mtu)


def test_hosts_know_the_least_mtu_of_a_program() -> None:
    assert base.LEAST_MTU == LEAST_MTU


@pytest.mark.parametrize(("mtu", "folder"), [(1086, "."), (1500, "."), (8269, "."), (8270, "jumbo"), (9000, "jumbo")])
def test_links_get_the_largest_packets_that_they_carry(mtu: int, folder: str) -> None:
    assert build_for(mtu).folder == folder


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.folder)
def test_ipv6_headers_take_more_of_the_mtu(build: Build) -> None:
    layout = Layout(build.lanes, build.block_size, 512)
    both = ["10.0.0.254", "fd00::fe"]
    assert list(map(layout.mtu, both)) == [build.mtu, build.mtu + 20]
    for mtu in (build.mtu + 20, build.mtu + 1000):
        assert [mtu_over_ipv4(mtu, ips) for ips in (both[:1], both[1:], both)] == [mtu, mtu - 20, mtu - 20]
        assert build_for(mtu_over_ipv4(mtu, both)) == build
