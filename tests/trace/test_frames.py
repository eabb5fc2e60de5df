# SPDX-License-Identifier: Apache-2.0
"""Packets in frames: alone, several in one, cut, tagged, and of other builds."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.trace.cli import trace as command
from p4reduce.trace.frames import ETHERNET, Build, Datagram, build_of, count_cut, datagram, headers, split
from p4reduce.trace.merging import merge

if TYPE_CHECKING:
    from p4reduce.trace.captures import Captured

WORKER, SWITCH = ("10.0.0.1", 40000), ("10.0.0.254", 31314)
TAGS = [b"", b"\x81\x00\x00\x05", b"\x88\xa8\x00\x05\x81\x00\x00\x06", b"\x91\x00\x00\x05\x81\x00\x00\x06"]


def payload(seq: int, lanes: int = 4, block: int = 64, present: int = 0) -> bytes:
    values = np.ones((present.bit_count(), block), np.int32) if present else np.empty((0, 0), np.int32)
    active = (1 << lanes) - 1 if present else 0
    packet = Packet(Op.DATA, 7, 3, 1, seq & 1, seq, 0xABCDEF00 | active, active, present, [5] * lanes, values)
    return Codec(lanes, block).encode(packet)


def frame(content: bytes, tag: bytes = b"") -> bytes:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(content), 0, 0, 64, 17, 0,
                     socket.inet_aton(WORKER[0]), socket.inet_aton(SWITCH[0]))  # fmt: skip
    udp = struct.pack("!4H", WORKER[1], SWITCH[1], 8 + len(content), 0)
    return bytes(12) + tag + b"\x08\x00" + ip + udp + content


def seen(content: bytes, time: int = 0) -> Datagram:
    found = datagram(time, ETHERNET, frame(content))
    assert found is not None
    return found


def test_a_packet_is_read() -> None:
    (one,) = headers(seen(payload(6, present=3)), Build())
    assert (one.source, one.destination, one.op, one.worker, one.seq) == (WORKER, SWITCH, Op.DATA, 1, 6)
    assert (one.active, one.present, one.keys) == (15, 3, (5, 5, 5, 5))


@pytest.mark.parametrize("tag", TAGS)
def test_tags_are_passed_over(tag: bytes) -> None:
    found = datagram(0, ETHERNET, frame(payload(6), tag) + bytes(20))  # and what fills a short frame is no payload
    assert found is not None
    assert found.payload == payload(6)


def cooked(kind: int, content: bytes, tag: bytes = b"", interface: int = 1) -> bytes:
    """A frame as Linux's "any" shows it: link type 113 or 276."""
    ethernet = frame(content, tag)
    if kind == 113:
        return struct.pack("!H", interface) + bytes(12) + ethernet[12:]
    return ethernet[12:14] + bytes(2) + struct.pack("!I", interface) + bytes(12) + ethernet[14:]


@pytest.mark.parametrize(("kind", "before"), [(101, 14), (0, 10)])
def test_other_links_are_known(kind: int, before: int) -> None:
    assert datagram(0, kind, frame(payload(6))[before:]) is not None


@pytest.mark.parametrize("kind", [113, 276])
@pytest.mark.parametrize("tag", TAGS)
def test_any_interface_is_known(kind: int, tag: bytes) -> None:
    whole = cooked(kind, payload(6), tag)
    found = datagram(0, kind, whole)
    assert found is not None
    assert found.payload == payload(6)
    for kept in range(len(whole) - len(payload(6))):  # of what is cut before its payload there is a packet, too
        cut = datagram(0, kind, whole[:kept], wire_length=len(whole))
        assert cut is not None
        assert cut.payload == b""


def test_of_other_links_it_says_so() -> None:
    with pytest.raises(ValueError, match="link type 105: accepted are"):
        datagram(0, 105, frame(payload(6)))


@pytest.mark.parametrize(
    "content",
    [b"", frame(b"")[:30], frame(payload(6)).replace(b"\x08\x00\x45", b"\x86\xdd\x45"), bytes(100)],
)
def test_what_is_none_of_ours_is_left_out(content: bytes) -> None:
    assert datagram(0, ETHERNET, content) is None


def test_several_packets_that_the_kernel_sends_as_one_are_told_apart() -> None:
    together = seen(payload(2, present=3) + payload(3, present=3) + payload(4, present=1))
    assert build_of([together]) == Build()
    assert [one.seq for one in headers(together, Build())] == [2, 3, 4]
    apart = list(split(together, Build()))
    assert [len(one.payload) for one in apart] == [34, 34, 34]
    assert [one.seq for each in apart for one in headers(each, Build())] == [2, 3, 4]
    assert build_of(apart) == Build()  # also of what is cut


@pytest.mark.parametrize(("lanes", "block"), [(4, 64), (8, 256), (8, 32), (2, 128), (1, 256)])
def test_the_build_is_told_by_lengths(lanes: int, block: int) -> None:
    packets = [seen(payload(number, lanes, block, present)) for number, present in enumerate((0, 1, 1))]
    assert build_of(packets) == Build(lanes, block)


def test_what_fits_no_build_is_refused() -> None:
    with pytest.raises(P4ReduceError, match="match no accepted number of lanes and block size"):
        merge([[seen(payload(2, present=1)[:-4])]])
    with pytest.raises(P4ReduceError, match="no packet to or from UDP port 31314"):
        merge([[]])


def test_a_packet_that_two_places_have_seen_counts_once() -> None:
    """The place that has seen most is before the one that loses some."""
    first = [seen(payload(number), number * 10) for number in (2, 3, 4)]
    second = [seen(payload(number), number * 10 + 5) for number in (2, 4)]
    heads, _, _ = merge([second, first])
    assert [(one.seq, one.time) for one in heads] == [(2, 20), (3, 30), (4, 40)]


def test_files_that_follow_one_another_all_count() -> None:
    """Files of `tcpdump -C`, in any order, beside a second place that misses packets of each."""
    parts = [[seen(payload(number), number * 10) for number in part] for part in ((2, 3), (4,), (5, 6, 7))]
    second = [[seen(payload(number), number * 10 + 1) for number in part] for part in ((2,), (5, 6))]
    heads, _, _ = merge([parts[2], second[1], parts[0], second[0], parts[1]])
    assert [(one.seq, one.time) for one in heads] == [(number, number * 10) for number in range(2, 8)]
    whole = [seen(payload(number), number * 10 + 2) for number in range(2, 8)]
    assert [one.time for one in merge([*parts, whole])[0]] == [one.time for one in whole]


@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
def test_captures_are_read(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("scapy")
    from scapy.layers.l2 import Ether
    from scapy.utils import PcapNgWriter, PcapWriter

    from p4reduce.trace.captures import read

    file = tmp_path / f"one.{kind}"
    writer = PcapNgWriter(str(file)) if kind == "pcapng" else PcapWriter(str(file), linktype=1)
    for number in range(3):
        packet = Ether(frame(payload(number)))
        packet.time = 1000 + number
        writer.write(packet)
    writer.close()
    captured = read(file)
    (found,) = captured.interfaces
    assert captured.whole
    assert [one.time // 10**9 for one in found] == [1000, 1001, 1002]
    assert [one.seq for each in found for one in headers(each, Build())] == [0, 1, 2]


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("scapy")
    from p4reduce.trace.captures import read

    with pytest.raises(P4ReduceError, match=r"none\.pcap: No such file"):
        read(tmp_path / "none.pcap")
    (tmp_path / "text.pcap").write_text("This is a text.\n" * 10)
    with pytest.raises(P4ReduceError, match=r"text\.pcap: is not a capture that can be read"):
        read(tmp_path / "text.pcap")


CHAIN = payload(2, present=3) + payload(3, present=3) + payload(4, present=3) + payload(5, present=1)


@pytest.mark.parametrize(
    ("kept", "cut"),
    [
        (len(CHAIN), 0),
        (3 * 546 + 34, 0),
        (3 * 546 + 33, 1),
        (546 + 34, 2),
        (546 + 33, 3),
        (54, 3),
        (33, 4),
        (3, 4),
        (2, 1),
    ],
)
def test_packets_without_a_whole_header_are_counted(kept: int, cut: int) -> None:
    """The values of the last that is kept are not needed. Of less than three bytes no number can be told."""
    whole = seen(CHAIN)
    assert count_cut(whole._replace(payload=CHAIN[:kept]), Build()) == cut
    assert len(list(headers(whole._replace(payload=CHAIN[:kept]), Build()))) == (4 - cut if kept >= 34 else 0)


def test_the_build_is_told_by_the_lengths_of_what_is_cut() -> None:
    """The first packet of a chain fits blocks of 64 and 128; the chain, only one of them."""
    content = payload(2, 4, 128, present=3) + payload(3, 4, 128, present=3) + payload(4, 4, 128, present=1)
    assert build_of([seen(content)._replace(payload=content[:60])]) == Build(4, 128)


def test_of_a_packet_that_is_cut_at_one_place_the_other_has_counted_it() -> None:
    whole = [seen(payload(number), number) for number in (2, 3, 4)]
    cut = [one._replace(payload=one.payload[:20]) for one in whole]
    assert merge([cut, whole])[2].total() == 0
    assert merge([cut, cut[:2]])[2] == {(7, 3): 3}


def written(file: Path, size: int, *contents: bytes) -> Path:
    """A capture of these datagrams, of whose frames it has `size` bytes."""
    from scapy.utils import PcapWriter

    writer = PcapWriter(str(file), linktype=1)
    writer.write_header(None)
    for number, content in enumerate(contents):
        whole = frame(content)
        writer.write_packet(whole[:size], sec=1000, usec=number, caplen=min(size, len(whole)), wirelen=len(whole))
    writer.close()
    return file


@pytest.mark.parametrize(("size", "rounds", "cut"), [(0xFFFF, 6, 0), (96, 3, 3), (80, 3, 3)])
def test_a_capture_that_was_cut_says_so(tmp_path: Path, size: int, rounds: int, cut: int) -> None:
    """As of tcpdump -s: of a chain there are the first packets' headers alone."""
    pytest.importorskip("scapy")
    chains = [payload(seq, present=3) + payload(seq + 1, present=3) for seq in (2, 4, 6)]
    file = written(tmp_path / "cut.pcap", size, *chains)
    told = json.loads(CliRunner().invoke(command, ["view", str(file), "--json"]).stdout)
    assert (told["rounds"], told["cut"]) == (rounds, cut)
    assert (told["lost"] is None) == bool(cut)
    assert any("cut before the end of the header" in text and "-s 0" in text for text in told["said"]) == bool(cut)
    assert f'"cut":{cut},' in (tmp_path / "cut.html").read_text()


@pytest.mark.parametrize("kind", ["pcap", "pcapng"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_ends_within_a_packet_says_so(tmp_path: Path, kind: str, compressed: bool) -> None:
    """A full disk ends a file so. The packet's missing part was not cut by `tcpdump -s`."""
    pytest.importorskip("scapy")
    from scapy.layers.l2 import Ether
    from scapy.utils import PcapNgWriter

    whole = tmp_path / "whole"
    sizes = []
    for count in (1, 2):
        if kind == "pcap":
            written(whole, 0xFFFF, *(payload(2 + seq, present=3) for seq in range(count)))
        else:
            writer = PcapNgWriter(str(whole))
            for seq in range(count):
                writer.write(Ether(frame(payload(2 + seq, present=3))))
            writer.close()
        sizes.append(whole.stat().st_size)
    content = whole.read_bytes()
    file = tmp_path / f"one.{kind}"
    for kept in (*range(sizes[0], sizes[0] + 40), sizes[1] - 1, sizes[1]):
        file.write_bytes(gzip.compress(content[:kept]) if compressed else content[:kept])
        done = CliRunner().invoke(command, ["view", str(file), "--json"])
        told = json.loads(done.stdout)
        assert (told["rounds"], told["cut"]) == (2 if kept == sizes[1] else 1, 0)
        said = f"{file} ends within a packet: what came afterwards is not in the trace"
        assert (said in done.stderr) == (kept not in sizes)
    file.write_bytes(gzip.compress(content)[:-9])
    assert not read_capture(file).whole


def read_capture(file: Path) -> Captured:
    from p4reduce.trace.captures import read

    return read(file)


@pytest.mark.parametrize("kind", [113, 276])
def test_a_packet_that_two_interfaces_have_seen_counts_once(tmp_path: Path, kind: int) -> None:
    """Both ends of a veth pair do, or a bridge and its port, in a capture of all interfaces."""
    pytest.importorskip("scapy")
    from scapy.utils import PcapWriter

    writer = PcapWriter(str(tmp_path / "any.pcap"), linktype=kind)
    writer.write_header(None)
    for number in range(6):
        content = cooked(kind, payload(2 + number // 2), interface=4 * (number % 2))
        writer.write_packet(content, sec=1000, usec=number, caplen=len(content), wirelen=len(content))
    writer.close()
    told = json.loads(CliRunner().invoke(command, ["view", str(tmp_path / "any.pcap"), "--json"]).stdout)
    assert (told["rounds"], told["packets"], told["asked"]) == (3, 3, 0)


@pytest.mark.parametrize("size", [12, 16, 24, 40, 42, 64])
def test_a_capture_without_any_whole_header_says_so(tmp_path: Path, size: int) -> None:
    pytest.importorskip("scapy")
    file = written(tmp_path / "cut.pcap", size, *(payload(seq) for seq in range(16)))
    done = CliRunner().invoke(command, ["view", str(file)])
    assert "; 16 packets cut before the end of the header: capture whole packets (tcpdump -s 0)" in done.stderr


def test_other_protocols_frames_are_not_taken_for_cut_packets() -> None:
    tcp = frame(payload(6)).replace(b"\x40\x11", b"\x40\x06", 1)
    for other in (tcp[:30], bytes(12) + b"\x08\x06" + bytes(10), bytes(12) + b"\x86\xdd\x60" + bytes(20)):
        assert datagram(0, ETHERNET, other, wire_length=100) is None
    assert datagram(0, ETHERNET, frame(payload(6)), wire_length=0) is not None
