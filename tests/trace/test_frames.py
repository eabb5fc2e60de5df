# SPDX-License-Identifier: Apache-2.0
"""Packets in frames: alone, several in one, cut, tagged, and of other builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec
from p4reduce.trace.cli import trace as command
from p4reduce.trace.frames import ETHERNET, Datagram, codec_of, count_cut, datagram, headers, split
from p4reduce.trace.merging import merge
from tests.support.trace_packets import IPV6_SWITCH, IPV6_WORKER, SWITCH, WORKER, cooked, frame, payload, pcap

TAGS = [b"", b"\x81\x00\x00\x05", b"\x88\xa8\x00\x05\x81\x00\x00\x06", b"\x91\x00\x00\x05\x81\x00\x00\x06"]


def seen(content: bytes, time: int = 0) -> Datagram:
    found = datagram(time, ETHERNET, frame(content))
    assert found is not None
    return found


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_packet_is_read(ipv6: bool) -> None:
    found = datagram(0, ETHERNET, frame(payload(6, present=3), ipv6=ipv6))
    assert found is not None
    (one,) = headers(found, Codec())
    assert (one.source, one.destination) == ((IPV6_WORKER, IPV6_SWITCH) if ipv6 else (WORKER, SWITCH))
    assert (one.op, one.worker, one.seq) == (Op.DATA, 1, 6)
    assert (one.active, one.present, one.keys) == (15, 3, (5, 5, 5, 5))


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("ipv6", [False, True])
def test_tags_are_passed_over(tag: bytes, ipv6: bool) -> None:
    padded = frame(payload(6), tag, ipv6=ipv6) + bytes(20)  # and what fills a short frame is no payload
    found = datagram(0, ETHERNET, padded)
    assert found is not None
    assert found.payload == payload(6)


@pytest.mark.parametrize(
    ("kind", "before", "families"), [(101, 14, "46"), (0, 10, "46"), (228, 14, "4"), (229, 14, "6")]
)
def test_other_links_are_known(kind: int, before: int, families: str) -> None:
    for family in "46":
        found = datagram(0, kind, frame(payload(6), ipv6=family == "6")[before:])
        assert (found is not None) == (family in families)


@pytest.mark.parametrize("kind", [113, 276])
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("ipv6", [False, True])
def test_any_interface_is_known(kind: int, tag: bytes, ipv6: bool) -> None:
    whole = cooked(kind, payload(6), tag, ipv6=ipv6)
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
    [
        b"",
        frame(b"")[:30],
        frame(b"", ipv6=True)[:60],
        frame(payload(6)).replace(b"\x08\x00\x45", b"\x86\xdd\x45"),
        frame(payload(6), ipv6=True).replace(b"\x86\xdd\x60", b"\x08\x00\x60"),
        frame(payload(6), ipv6=True).replace(b"\x11\x40\xfd", b"\x2c\x40\xfd"),  # a fragment
        bytes(100),
    ],
)
def test_what_is_none_of_ours_is_left_out(content: bytes) -> None:
    assert datagram(0, ETHERNET, content) is None


def test_several_packets_that_the_kernel_sends_as_one_are_told_apart() -> None:
    together = seen(payload(2, present=3) + payload(3, present=3) + payload(4, present=1))
    assert codec_of([together]) == Codec()
    assert [one.seq for one in headers(together, Codec())] == [2, 3, 4]
    pieces = list(split(together, Codec()))
    assert [len(one.payload) for one in pieces] == [34, 34, 34]
    assert [one.seq for each in pieces for one in headers(each, Codec())] == [2, 3, 4]
    assert codec_of(pieces) == Codec()  # also of what is cut


@pytest.mark.parametrize(("lanes", "block"), [(4, 64), (8, 256), (8, 32), (2, 128), (1, 256)])
def test_the_build_is_told_by_lengths(lanes: int, block: int) -> None:
    packets = [seen(payload(number, lanes, block, present)) for number, present in enumerate((0, 1, 1))]
    assert codec_of(packets) == Codec(lanes, block)


def test_what_fits_no_build_is_refused() -> None:
    with pytest.raises(P4ReduceError, match="match no accepted number of lanes and block size"):
        merge([[seen(payload(2, present=1)[:-4])]])
    with pytest.raises(P4ReduceError, match="no packet to or from UDP port 31314"):
        merge([[]])


def test_a_packet_that_two_captures_have_seen_counts_once() -> None:
    """The capture point that has seen most is before the one that loses some."""
    first = [seen(payload(number), number * 10) for number in (2, 3, 4)]
    second = [seen(payload(number), number * 10 + 5) for number in (2, 4)]
    heads, _, _ = merge([second, first])
    assert [(one.seq, one.time) for one in heads] == [(2, 20), (3, 30), (4, 40)]


def test_files_that_follow_one_another_all_count() -> None:
    """Files of `tcpdump -C`, in any order, beside a second capture point that misses packets of each."""
    parts = [[seen(payload(number), number * 10) for number in part] for part in ((2, 3), (4,), (5, 6, 7))]
    second = [[seen(payload(number), number * 10 + 1) for number in part] for part in ((2,), (5, 6))]
    heads, _, _ = merge([parts[2], second[1], parts[0], second[0], parts[1]])
    assert [(one.seq, one.time) for one in heads] == [(number, number * 10) for number in range(2, 8)]
    whole = [seen(payload(number), number * 10 + 2) for number in range(2, 8)]
    assert [one.time for one in merge([*parts, whole])[0]] == [one.time for one in whole]


def written(file: Path, *frames: bytes, size: int = 0xFFFF) -> Path:
    file.write_bytes(b"".join(pcap(*frames, size=size)))
    return file


CHAIN = payload(2, present=3) + payload(3, present=3) + payload(4, present=3) + payload(5, present=1)


@pytest.mark.parametrize(
    ("kept", "cut"),
    [
        (len(CHAIN), 0), (3 * 546 + 34, 0), (3 * 546 + 33, 1), (546 + 34, 2), (546 + 33, 3), (54, 3), (33, 4), (3, 4),
        (2, 1),
    ],
)  # fmt: skip
def test_packets_without_a_whole_header_are_counted(kept: int, cut: int) -> None:
    """The values of the last that is kept are not needed. Of less than three bytes no number can be told."""
    whole = seen(CHAIN)
    assert count_cut(whole._replace(payload=CHAIN[:kept]), Codec()) == cut
    assert len(list(headers(whole._replace(payload=CHAIN[:kept]), Codec()))) == (4 - cut if kept >= 34 else 0)


def test_the_build_is_told_by_the_lengths_of_what_is_cut() -> None:
    """The first packet of a chain fits blocks of 64 and 128; the chain, only one of them."""
    content = payload(2, 4, 128, present=3) + payload(3, 4, 128, present=3) + payload(4, 4, 128, present=1)
    assert codec_of([seen(content)._replace(payload=content[:60])]) == Codec(4, 128)


def test_of_a_packet_that_is_cut_in_one_capture_the_other_has_counted_it() -> None:
    whole = [seen(payload(number), number) for number in (2, 3, 4)]
    cut = [one._replace(payload=one.payload[:20]) for one in whole]
    assert merge([cut, whole])[2].total() == 0
    assert merge([cut, cut[:2]])[2] == {(7, 3): 3}


@pytest.mark.parametrize(("size", "rounds", "cut"), [(0xFFFF, 6, 0), (96, 3, 3), (80, 3, 3)])
def test_a_capture_that_was_cut_says_so(tmp_path: Path, size: int, rounds: int, cut: int) -> None:
    """A capture by `tcpdump -s` has only the headers of a chain's first packets."""
    chains = [frame(payload(seq, present=3) + payload(seq + 1, present=3)) for seq in (2, 4, 6)]
    file = written(tmp_path / "cut.pcap", *chains, size=size)
    told = json.loads(CliRunner().invoke(command, ["view", str(file), "--json"]).stdout)
    assert (told["rounds"], told["cut"]) == (rounds, cut)
    assert (told["lost"] is None) == bool(cut)
    assert any("cut before the end of the header" in text and "-s 0" in text for text in told["said"]) == bool(cut)
    assert f'"cut":{cut},' in (tmp_path / "cut.html").read_text()


@pytest.mark.parametrize(("missing", "rounds"), [(1, 1), (0, 2)])
def test_a_file_that_ends_within_a_packet_says_so(tmp_path: Path, missing: int, rounds: int) -> None:
    """A full disk ends a file so. The packet's missing part was not cut by `tcpdump -s`."""
    file = written(tmp_path / "one.pcap", *(frame(payload(seq, present=3)) for seq in (2, 3)))
    file.write_bytes(file.read_bytes()[: file.stat().st_size - missing])
    done = CliRunner().invoke(command, ["view", str(file), "--json"])
    told = json.loads(done.stdout)
    assert (told["rounds"], told["cut"]) == (rounds, 0)
    assert (f"{file} ends within a packet: what came afterwards is not in the trace" in done.stderr) == bool(missing)


@pytest.mark.parametrize("size", [12, 16, 24, 40, 42, 64])
def test_a_capture_without_any_whole_header_says_so(tmp_path: Path, size: int) -> None:
    file = written(tmp_path / "cut.pcap", *(frame(payload(seq), ipv6=seq % 2 == 1) for seq in range(16)), size=size)
    done = CliRunner().invoke(command, ["view", str(file)])
    assert "; 16 packets cut before the end of the header: capture whole packets (tcpdump -s 0)" in done.stderr


def test_other_protocols_frames_are_not_taken_for_cut_packets() -> None:
    tcp = frame(payload(6)).replace(b"\x40\x11", b"\x40\x06", 1)
    tcp6 = frame(payload(6), ipv6=True).replace(b"\x11\x40\xfd", b"\x06\x40\xfd")
    for other in (tcp[:30], tcp6[:60], bytes(12) + b"\x08\x06" + bytes(10), bytes(12) + b"\x86\xdd\x60" + bytes(20)):
        assert datagram(0, ETHERNET, other, wire_length=100) is None
    assert datagram(0, ETHERNET, frame(payload(6)), wire_length=0) is not None
