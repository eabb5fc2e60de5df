# SPDX-License-Identifier: Apache-2.0
"""Files of captures: sections, interfaces and times of pcapng; files that end too early, and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.packet import Codec
from p4reduce.trace.captures import Captured, read
from p4reduce.trace.cli import trace as command
from p4reduce.trace.frames import ETHERNET, headers
from tests.support.trace_packets import cooked, frame, payload, pcap

ANY = 276
LITTLE, BIG = "<", ">"


def block(kind: int, body: bytes, order: str = LITTLE) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + length + body + length


def section(order: str = LITTLE, version: int = 1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}I2Hq", 0x1A2B3C4D, version, 0, -1), order)


def interface(
    link_type: int = ETHERNET, order: str = LITTLE, *, name: bytes = b"", resolution: bytes = b"", offset: bytes = b""
) -> bytes:
    body = struct.pack(f"{order}HHI", link_type, 0, 0)
    for code, value in ((2, name), (9, resolution), (14, offset)):
        if value:
            body += struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)
    return block(1, body + bytes(4 if len(body) > 8 else 0), order)  # the end of options, where there are any


def packet(
    content: bytes, time: int = 0, *, at: int = 0, order: str = LITTLE, size: int | None = None, wire: int | None = None
) -> bytes:
    lengths = (len(content) if size is None else size, len(content) if wire is None else wire)
    return block(6, struct.pack(f"{order}5I", at, time >> 32, time & 0xFFFFFFFF, *lengths) + content, order)


def pcapng(*contents: bytes) -> list[bytes]:
    return [section(), interface(), *(packet(content) for content in contents)]


def read_bytes(folder: Path, content: bytes) -> Captured:
    file = folder / "capture"
    file.write_bytes(content)
    return read(file)


def numbers(captured: Captured) -> list[list[int]]:
    """Return the sequence numbers of the packets at each interface."""
    return [[one.seq for each in packets for one in headers(each, Codec())] for packets in captured.interfaces]


FRAMES = [frame(payload(seq, present=1)) for seq in (2, 3, 4)]
FILES = {"pcap": pcap(*FRAMES), "pcapng": pcapng(*FRAMES)}


@pytest.mark.parametrize(("order", "other"), [(LITTLE, BIG), (BIG, LITTLE), (LITTLE, LITTLE)])
def test_sections_have_interfaces_of_their_own(tmp_path: Path, order: str, other: str) -> None:
    """The capture is two files in a row: one of a port, and one of all interfaces of a host."""
    content = section(order) + interface(order=order, name=b"eth0") + packet(FRAMES[0], order=order)
    content += section(other) + interface(ANY, other, name=b"any")
    content += packet(cooked(ANY, payload(3), interface=1), order=other)
    content += packet(cooked(ANY, payload(4), interface=2), order=other)
    captured = read_bytes(tmp_path, content)
    assert captured.whole
    assert numbers(captured) == [[2], [3], [4]]


def test_an_interface_goes_on_in_a_later_section(tmp_path: Path) -> None:
    one, other = section() + interface(name=b"eth0"), section(BIG) + interface(name=b"eth0", order=BIG)
    assert numbers(read_bytes(tmp_path, one + packet(FRAMES[0]) + other + packet(FRAMES[1], order=BIG))) == [[2, 3]]


def of_two(one: bytes, other: bytes) -> bytes:
    """Return a file of two interfaces with these names, each of which has seen three packets."""
    packets = [packet(frame(payload(2 + number // 2)), number, at=number % 2) for number in range(6)]
    return section() + interface(name=one) + interface(name=other) + b"".join(packets)


def of_any(kind: int) -> bytes:
    """Return a capture of all interfaces, where both ends of a veth pair see a packet, or a bridge and its port."""
    frames = [cooked(kind, payload(2 + number // 2), interface=4 * (number % 2)) for number in range(6)]
    return b"".join(pcap(*frames, link=kind))


@pytest.mark.parametrize(
    "content", [of_two(b"", b""), of_two(b"eth0", b"eth1"), of_any(113), of_any(276)], ids=["-", "names", "113", "276"]
)
def test_a_packet_at_two_interfaces_counts_once(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "two.capture"
    file.write_bytes(content)
    assert numbers(read(file)) == [[2, 3, 4], [2, 3, 4]]
    told = json.loads(CliRunner().invoke(command, ["view", str(file), "--json"]).stdout)
    assert (told["rounds"], told["packets"], told["asked"]) == (3, 3, 0)


@pytest.mark.parametrize("order", [LITTLE, BIG])
@pytest.mark.parametrize(("magic", "ns"), [(0xA1B2C3D4, 7000), (0xA1B23C4D, 7)])
def test_times_of_pcap(tmp_path: Path, order: str, magic: int, ns: int) -> None:
    captured = read_bytes(tmp_path, b"".join(pcap(FRAMES[0], magic=magic, order=order)))
    assert [one.time for one in captured.interfaces[0]] == [1000 * 10**9 + ns]


@pytest.mark.parametrize("order", [LITTLE, BIG])
@pytest.mark.parametrize(
    ("resolution", "offset", "units", "ns"),
    [
        (b"", 0, 1000_000_007, 1000_000_007_000),
        (b"\x09", 0, 5 << 32, 5 << 32),
        (b"\x8a", 0, 1536, 1_500_000_000),
        (b"\x06", 3600, 7, 3600_000_007_000),
    ],
)
def test_times_of_pcapng(tmp_path: Path, order: str, resolution: bytes, offset: int, units: int, ns: int) -> None:
    added = struct.pack(f"{order}q", offset) if offset else b""
    described = interface(order=order, name=b"eth0", resolution=resolution, offset=added)
    captured = read_bytes(tmp_path, section(order) + described + packet(FRAMES[0], units, order=order))
    assert [one.time for one in captured.interfaces[0]] == [ns]


def test_other_blocks_of_pcapng(tmp_path: Path) -> None:
    """Unknown blocks are passed over; the obsolete Packet Block has packets."""
    old = block(2, struct.pack("<2H4I", 0, 5, 0, 9, len(FRAMES[1]), len(FRAMES[1])) + FRAMES[1])
    content = section() + interface() + block(0x0BAD, b"unknown") + packet(FRAMES[0]) + old
    assert numbers(read_bytes(tmp_path, content)) == [[2, 3]]
    with pytest.raises(P4ReduceError, match="a packet without a time"):
        read_bytes(tmp_path, content + block(3, struct.pack("<I", len(FRAMES[0])) + FRAMES[0]))


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("members", [0, 1, 2])
def test_a_file_that_ends_too_early(tmp_path: Path, kind: str, members: int) -> None:
    """Whole is only what ends between two records, and with gzip also between two members."""
    parts = FILES[kind]
    if members == 2:
        parts = [gzip.compress(b"".join(parts[:-1])), gzip.compress(parts[-1])]
    elif members:
        parts = [gzip.compress(b"".join(parts))]
    content = b"".join(parts)
    ends = {sum(map(len, parts[: count + 1])) for count in range(len(parts))}
    before: list[int] = []
    for kept in range(4, len(content) + 1):
        captured = read_bytes(tmp_path, content[:kept])
        (seen,) = numbers(captured) or [[]]
        assert captured.whole == (kept in ends), kept
        assert seen[: len(before)] == before
        before = seen
    assert before == [2, 3, 4]


def test_what_follows_a_gzip_file(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(FILES["pcap"]))
    assert read_bytes(tmp_path, content + bytes(100_000)).whole
    for damaged in (content + b"text", content[:-8] + bytes(4) + content[-4:], content[:40] + bytes(8) + content[48:]):
        with pytest.raises(P4ReduceError, match="capture: is damaged"):
            read_bytes(tmp_path, damaged)


def with_length(length: int, *, at_end: bool) -> bytes:
    whole, stated = packet(FRAMES[0]), struct.pack("<I", length)
    return whole[:-4] + stated if at_end else whole[:4] + stated + whole[8:]


@pytest.mark.parametrize(
    "damaged",
    [
        *(with_length(length, at_end=at_end) for length in (0, 8, 61, 64, 0xFFFFFFFC) for at_end in (False, True)),
        packet(FRAMES[0], size=len(FRAMES[0]) + 100, wire=0xFFFF),
        packet(FRAMES[0], wire=10),
        packet(FRAMES[0], at=1),
        packet(FRAMES[0], 1 << 63),
        block(6, bytes(16)),
        interface(resolution=bytes(2)),
        interface(offset=bytes(4)),
        section()[:8] + bytes(4) + section()[12:],
        section(version=2),
    ],
)
def test_a_damaged_pcapng_file_is_refused(tmp_path: Path, damaged: bytes) -> None:
    with pytest.raises(P4ReduceError, match=r"capture: (is damaged|pcapng 2: accepted)"):
        read_bytes(tmp_path, b"".join([*FILES["pcapng"], damaged, packet(FRAMES[1]), packet(FRAMES[2])]))


@pytest.mark.parametrize("lengths", [(400, 300), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_a_damaged_pcap_file_is_refused(tmp_path: Path, lengths: tuple[int, int]) -> None:
    with pytest.raises(P4ReduceError, match="capture: is damaged"):
        read_bytes(tmp_path, b"".join([*FILES["pcap"], struct.pack("<4I", 1000, 7, *lengths), FRAMES[0]]))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"This is a text.\n" * 10, id="text"),
        pytest.param(b"\xa1\xb2\xcd\x34" + FILES["pcap"][0][4:], id="modified pcap"),
        pytest.param(gzip.compress(b"text"), id="compressed text"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(P4ReduceError, match=r"capture: is not a capture that can be read \(pcap or pcapng\)"):
        read_bytes(tmp_path, content)
    with pytest.raises(P4ReduceError, match=r"none\.pcap: No such file"):
        read(tmp_path / "none.pcap")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(FILES)), st.booleans(), st.integers(0, 2000), st.integers(1, 255))
def test_a_wrong_byte_anywhere(tmp_path: Path, kind: str, compressed: bool, at: int, bits: int) -> None:
    """The byte may be a packet's own, which no format protects. No exception but P4ReduceError escapes."""
    content = b"".join(FILES[kind])
    changed = bytearray(gzip.compress(content, mtime=0) if compressed else content)
    changed[at % len(changed)] ^= bits
    with contextlib.suppress(P4ReduceError):
        read_bytes(tmp_path, bytes(changed))
