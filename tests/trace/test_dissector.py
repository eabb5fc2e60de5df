# SPDX-License-Identifier: Apache-2.0
"""tshark dissects with the plugin what the codec packs: each kind of packet, chains, other builds, and what was cut."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.constants import NO_KEY, NOBODY, Op
from p4reduce.protocol.header import FIELDS
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.trace.cli import trace as command
from tests.support.trace_packets import frame, pcap

DEADLINE_S = 60
HEADER = [field.name for field in FIELDS]
KEYS = [5 << 8 | 100, NO_KEY, 0, 0xFFFFFF00]


def dissect(
    folder: Path, frames: list[bytes], *names: str, kept: tuple[int, ...] = (), options: tuple[str, ...] = ()
) -> list[dict[str, list[str]]]:
    """Return for each frame the values of fields, by name, in all its packets. kept: captured bytes of each frame."""
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark (Debian: tshark)")
    plugin = folder / "p4reduce.lua"
    plugin.write_text(CliRunner().invoke(command, ["dissector"]).stdout)
    records = [pcap(one, size=size)[1] for one, size in zip(frames, kept or map(len, frames), strict=True)]
    (folder / "job.pcap").write_bytes(pcap()[0] + b"".join(records))
    asked = [name if name.startswith("_") else f"p4reduce.{name}" for name in names]
    run = ["tshark", "-X", f"lua_script:{plugin}", "-r", str(folder / "job.pcap"), *options]
    run += ["-T", "fields", "-E", "separator=|", *(word for name in asked for word in ("-e", name))]
    done = subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert "Error" not in done.stderr, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [dict(zip(names, (cell.split(",") if cell else [] for cell in row), strict=True)) for row in rows]


def numbers(found: list[str]) -> list[int]:
    return [int(one, 0) for one in found]


def packed(op: Op, lanes: int = 4, block: int = 64, present: int = 0, seq: int = 0x01020304) -> tuple[Packet, bytes]:
    """Return a packet whose fields all have different values, and its bytes."""
    values = np.arange(-5, present.bit_count() * block - 5, dtype=np.int32).reshape(-1, block)
    packet = Packet(
        op, 0x1122, 0x3344, 0x55, 0x6677, seq, 0x8899AA00 | present, present, present, (KEYS * 2)[:lanes], values
    )
    return packet, Codec(lanes, block).encode(packet)


def test_every_kind_of_packet(tmp_path: Path) -> None:
    made = [packed(op, present=present) for op in Op for present in (0, 0b1010)]
    frames = [frame(content) for _, content in made]
    for (packet, content), found in zip(made, dissect(tmp_path, frames, *HEADER, "length", "value"), strict=True):
        wanted = {name: [getattr(packet, name)] for name in HEADER[1:]} | {"version": [1]}
        assert {name: numbers(found[name]) for name in HEADER} == wanted
        assert numbers(found["length"]) == [len(content)]
        assert numbers(found["value"]) == packet.values.reshape(-1).tolist()


def test_what_keys_say_depends_on_the_packet(tmp_path: Path) -> None:
    frames = [frame(packed(op)[1]) for op in (Op.DATA, Op.STATUS, Op.ERROR, Op.HELLO)]
    reason = pb.AbortReason.Value("LEFT_EARLY")
    frames += [frame(Codec().encode(Packet(Op.ABORT, 1, 2, NOBODY, seq=1, keys=[reason, 0, 0, 0])))]
    zeros = np.zeros((4, 64), np.int32)
    frames += [frame(Codec().encode(Packet(Op.HELLO, 1, 2, seq=1)))]
    frames += [frame(Codec().encode(Packet(Op.HELLO, 1, 2, active=15, present=15, values=zeros)))]
    names = ("key.lane", "key.block", "key.exponent", "counted", "came", "nonce", "reason", "short")
    data, status, error, hello, abort, short, full = dissect(tmp_path, frames, *names)
    assert data["key.lane"] == ["0", "1", "2", "3"]
    assert (data["key.block"], data["key.exponent"]) == (["5", "0", "16777215"], ["155", "255", "255"])
    for found, name in ((status, "counted"), (error, "came"), (hello, "nonce")):
        assert (numbers(found[name]), found["key.block"]) == ([KEYS[0]], [])
    assert abort["reason"] == [str(reason)]
    assert (short["short"], full["short"], data["short"]) == (["1"], ["0"], [])


def test_chains_of_each_build(tmp_path: Path) -> None:
    """Several packets that the kernel sends as one; the last may be shorter."""
    builds = [(4, 64), (8, 256), (1, 128), (2, 32), (8, 32)]
    frames = []
    for lanes, block in builds:
        most = (1 << lanes) - 1
        packets = [packed(Op.RESULT, lanes, block, present, seq) for seq, present in enumerate((most, most, 1))]
        frames.append(frame(b"".join(content for _, content in packets)))
        frames.append(frame(b"".join(packed(Op.DATA, lanes, block, seq=seq)[1] for seq in range(30))))
    names = ("seq", "op", "lanes", "block_size", "value", "key", "malformed", "_ws.col.Info")
    found = dissect(tmp_path, frames, *names)
    for (lanes, block), full, bare in zip(builds, found[::2], found[1::2], strict=True):
        assert numbers(full["seq"]) == [0, 1, 2]
        assert (set(full["lanes"]), set(full["block_size"])) == ({str(lanes)}, {str(block)})
        assert len(full["value"]) == (2 * lanes + 1) * block
        assert numbers(bare["seq"]) == list(range(30))
        assert set(bare["lanes"]) == {str(lanes)}
        assert len(bare["key"]) == 30 * lanes
        assert full["malformed"] == bare["malformed"] == []
        assert bare["_ws.col.Info"] == ["DATA job 4386.13124 worker 85 slot 13115.1 seq 0", " and 29 more"]


def test_what_was_cut_is_marked(tmp_path: Path) -> None:
    whole = frame(packed(Op.DATA, present=3)[1] + packed(Op.DATA, present=3)[1])
    cases = {len(whole): (2, 8), 640: (2, 8), 610: (2, 5), 600: (1, 4), 96: (1, 4), 70: (1, 2), 50: (0, 0)}
    found = dissect(tmp_path, [whole] * len(cases), "seq", "key", "cut", "malformed", kept=tuple(cases))
    assert [(len(one["seq"]), len(one["key"])) for one in found] == list(cases.values())
    assert [bool(one["cut"]) for one in found] == [kept < len(whole) for kept in cases]
    assert not any(one["malformed"] for one in found)


def test_what_is_malformed_is_marked_and_other_protocols_are_left_alone(tmp_path: Path) -> None:
    whole = packed(Op.DATA, present=1)[1]
    wrong = [whole[:-4], whole[:2] + b"\x02" + whole[3:], b"\x1f" + packed(Op.DATA)[1][1:]]
    other = [b"\x21" + whole[1:], whole[:10], b""]
    found = dissect(tmp_path, [frame(one) for one in wrong + other], "malformed", "_ws.col.Protocol")
    assert [bool(one["malformed"]) for one in found] == [True] * 3 + [False] * 3
    assert [one["_ws.col.Protocol"] for one in found] == [["p4reduce"]] * 3 + [["UDP"]] * 3


def test_other_ports_and_builds_can_be_named(tmp_path: Path) -> None:
    content = packed(Op.DATA, 2, 32)[1]
    port = frame(content).replace(struct.pack("!H", 31314), struct.pack("!H", 31400), 1)
    options = ("-d", "udp.port==31400,p4reduce", "-o", "p4reduce.lanes:2", "-o", "p4reduce.block_size:32")
    (found,) = dissect(tmp_path, [port], "seq", "lanes", "block_size", options=options)
    assert (found["seq"], found["lanes"], found["block_size"]) == (["16909060"], ["2"], ["32"])


def test_the_command_prints_the_whole_plugin() -> None:
    text = CliRunner().invoke(command, ["dissector"]).stdout
    assert "$" not in text
    assert all(f'name = "{name}"' in text for name in HEADER)
    assert 'DissectorTable.get("udp.port")' in text
