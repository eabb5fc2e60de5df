# SPDX-License-Identifier: Apache-2.0
"""p4src/include is where the protocol's numbers and layouts live; Python and C repeat them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest

from p4reduce.protocol import constants
from p4reduce.protocol.constants import Op, Outcome
from p4reduce.protocol.header import FIELDS, FIXED, KEY
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.transport import frames as transport_frames
from p4reduce_controller.switches import frames
from tests.support import c_headers

P4SRC = c_headers.ROOT / "p4src" / "include"
WIRE = c_headers.HOST / "wire"
WIDTHS = {"mac_t": 48, "ipv4_t": 32, "ipv6_t": 128, "port_t": 9}


def p4_constants(file: str = "constants.p4") -> dict[str, int]:
    text = (P4SRC / file).read_text()
    found = re.findall(r"^const bit<\d+> +(\w+)\s*= (\w+);", text, re.M) + re.findall(
        r"^#define (\w+) (\d+)\b", text, re.M
    )
    return {name: int(value, 0) for name, value in found}


def test_numbers() -> None:
    p4 = p4_constants()
    names = ("PROTOCOL_VERSION", "AGGREGATION_PORT", "NO_KEY", "MAX_GROWTH", "PARENT", "NOBODY", "ECN_CE")
    assert [p4[name] for name in names] == [getattr(constants, name) for name in names]
    assert (p4["LANES"], p4["BLOCK_SIZE"]) == (constants.DEFAULT_LANES, constants.DEFAULT_BLOCK_SIZE)
    assert p4["PARENT_BIT"] == 1 << constants.PARENT
    assert p4["OUTCOMES"] == len(Outcome)


@pytest.mark.parametrize("kind", [Op, Outcome])
def test_codes(kind: type[Op | Outcome]) -> None:
    prefix = f"{kind.__name__.upper()}_"
    theirs = {name: value for name, value in p4_constants().items() if name.startswith(prefix)}
    assert {f"{prefix}{one.name}": one.value for one in kind} == theirs


def test_the_dashboard_sums_each_packet_once() -> None:
    dashboard = (c_headers.ROOT / "controller" / "monitoring" / "dashboard.json").read_text()
    left_out = re.findall(r'rate\(p4reduce_packets_total\{outcome!~\\"([a-z_|]+)\\"\}', dashboard)
    assert [set(names.split("|")) for names in left_out] == [
        {outcome.name.lower() for outcome in constants.ADDITIONAL_OUTCOMES}
    ]


def test_numbers_of_c() -> None:
    """C has all constants of P4, except the options of its compiler. The other ones are equal to Python's."""
    p4, c = p4_constants(), c_headers.constants(WIRE / "constants.h")
    options = {"LANES", "BLOCK_SIZE", "SLOTS", "CPU_PORT"}
    assert {name: c.get(name) for name in p4.keys() - options} == {name: p4[name] for name in p4.keys() - options}
    assert c.pop("MAX_LANES") == max(constants.LANES_ACCEPTED)
    assert {name: c[name] for name in c.keys() - p4.keys()} == {
        name: getattr(constants, name)
        for name in ("MAX_WORKERS", "MAX_RANKS", "MAX_AGGREGATORS", "MAX_THREADS", "ECN_MASK", "ECN_ECT_0")
    }


def test_build_parameters() -> None:
    text = (P4SRC / "repeat.p4").read_text()
    for name, accepted in (("LANES", constants.LANES_ACCEPTED), ("BLOCK_SIZE", constants.BLOCK_SIZES_ACCEPTED)):
        assert tuple(map(int, re.findall(rf"^#(?:if|elif) {name} == (\d+)", text, re.M))) == accepted


def p4_fields(header: str, file: str = "headers.p4") -> dict[str, tuple[int, int]]:
    """Return the first bit and the width in bits of each field of a header."""
    text = re.sub(r"//.*", "", (P4SRC / file).read_text())
    (body,) = re.findall(rf"header {header}_h \{{(.*?)\}}", text, re.S)
    found = re.findall(r"(?:bit<(\d+)>|(\w+))\s+(\w+);", body)
    widths = [int(bits) if bits else WIDTHS[name] for bits, name, _ in found]
    ends = accumulate(widths)
    return {name: (end - width, width) for (_, _, name), width, end in zip(found, widths, ends, strict=True)}


HEADERS = ("packet_out", "packet_in", "ethernet", "vlan", "arp", "ipv4", "icmp", "udp", "aggregation", "key")


def test_layout_of_c() -> None:
    value = re.findall(r"#define VALUE_FIELD\(i\) bit<(\d+)>", (P4SRC / "headers.p4").read_text())
    wanted = {"VALUE_SIZE": int(*value) / 8}
    for header in HEADERS:
        fields = p4_fields(header)
        wanted |= {f"{header}_{name}".upper(): at / 8 for name, (at, _) in fields.items()}
        wanted[f"{header}_SIZE".upper()] = sum(width for _, width in fields.values()) / 8
    wanted["UDP_HEADERS_SIZE"] = wanted["ETHERNET_SIZE"] + wanted["IPV4_SIZE"] + wanted["UDP_SIZE"]
    there = c_headers.constants(WIRE / "headers.h")
    assert there == {name: wanted[name] for name in there}
    assert {f"{header}_SIZE".upper() for header in HEADERS} <= there.keys()


def test_ipv6_of_c() -> None:
    """C has all headers and constants of P4, but that of an address's first bits."""
    wanted = {name: value for name, value in p4_constants("ipv6.p4").items() if name != "IPV4_MAPPED"}
    there = c_headers.constants(WIRE / "headers.h", WIRE / "ipv6.h")
    for header in ("ipv6", "neighbour", "neighbour_mac"):
        fields = p4_fields(header, "ipv6.p4")
        wanted[f"{header}_SIZE".upper()] = sum(width for _, width in fields.values()) // 8
        wanted |= {f"{header}_{name}".upper(): at // 8 for name, (at, _) in fields.items() if at % 8 == 0}
    assert {name: there.get(name) for name in wanted} == wanted
    assert there["UDP_IPV6_HEADERS_SIZE"] == there["UDP_HEADERS_SIZE"] - there["IPV4_SIZE"] + there["IPV6_SIZE"]


def test_description_of_the_header() -> None:
    """Codec, scapy layer and dissector are made from this description."""
    at = 0
    wanted = p4_fields("aggregation")
    for field in FIELDS:
        assert wanted.pop(field.name) == (at, field.bits)
        at += field.bits
    assert not wanted
    assert FIXED.size * 8 == at
    assert sum(field.bits for field in KEY) == p4_fields("key")["key"][1]


def by_codec(**fields: int) -> bytes:
    values = np.zeros((fields.get("present", 0).bit_count(), 32), np.int32)
    return Codec(8, 32).encode(Packet(**{"op": 0, "job": 0, "generation": 0, **fields}, values=values))


def by_controller(**fields: int) -> bytes:
    nobody = frames.Endpoint("00:00:00:00:00:00", "0.0.0.0", 0)
    return frames.build(Packet(**{"op": 0, **fields}), nobody, nobody)[transport_frames.HEADERS.size :]


@pytest.mark.parametrize("pack", [by_codec, by_controller])
def test_layout_of_python(pack: Callable[..., bytes]) -> None:
    """A field of all ones changes the bits that P4 has for it, and no others."""
    fields = p4_fields("aggregation")
    bits = sum(width for _, width in fields.values())

    def header(**given: int) -> int:
        return int.from_bytes(pack(**given)[: bits // 8], "big")

    at, width = fields.pop("version")
    assert header() == constants.PROTOCOL_VERSION << (bits - at - width)
    for name, (at, width) in fields.items():
        ones = (1 << width) - 1
        assert header(**{name: ones}) ^ header() == ones << (bits - at - width), name
