# SPDX-License-Identifier: Apache-2.0
"""Random traffic comes out of the program for Tofino as it does of the one for BMv2, byte for byte."""

from __future__ import annotations

import shutil
import struct
import zlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.dataplane.frames import RESULT, STATUS, Aggregation
from tests.support.dataplane.fuzz import Report, compare
from tests.support.dataplane.jobs import Job
from tests.support.dataplane.switch import FORGERIES, LOSSES_IN, LOSSES_OUT, OUTCOME_NAMES, OUTCOMES, Switch
from tests.support.dataplane.targets import Unavailable
from tests.support.dataplane.traffic import Setup, Step, Traffic
from tests.support.scripts import P4SRC
from tests.support.tofino.builds import PROFILES, TofinoSwitch, bmv2, build, tofino

pytestmark = pytest.mark.p4c


class Faithful(Traffic):
    """A worker sends the same keys each time that it sends its packet of a round, and values each time or never.

    Tofino 1 has no stage left to tell who is counted before it takes the minimum, so there another key would count. The
    parent's keys are less than all of its leaf's, because they are the minimum of all. Its packets are not marked: the
    mark of a dropped one would count, too.
    """

    def _packet(self, job: Job | None = None) -> tuple[Job, Aggregation]:
        job, packet = super()._packet(job)
        has_values = zlib.crc32(f"{job.number} {packet.worker} {packet.slot} {packet.seq}".encode()) % 2
        return job, replace(packet, values={lane: self._values() for lane in range(packet.active * has_values)})

    def _frame(self, kind: str, port: int, frame: bytes) -> Step:
        keys = slice(60, 60 + 4 * self._lanes)
        if len(frame) >= keys.stop:
            worker_job, slot_seq = frame[45:48], frame[50:56]
            least = [zlib.crc32(worker_job + slot_seq + bytes([lane])) for lane in range(self._lanes)]
            if frame[42] & 0xF == RESULT:
                least = [key >> 24 for key in least]
            frame = frame[: keys.start] + struct.pack(f"!{self._lanes}I", *least) + frame[keys.stop :]
            if frame[42] & 0xF in (RESULT, STATUS):
                frame = without_mark(frame)
        return super()._frame(kind, port, frame)


def without_mark(frame: bytes) -> bytes:
    """Return the frame with ECT(0) in place of CE. A correct checksum stays correct."""
    if len(frame) < 34 or frame[12:14] != b"\x08\x00" or frame[15] & 3 != 3:
        return frame
    total = int.from_bytes(frame[24:26], "big") + 1
    total = (total & 0xFFFF) + (total >> 16)
    return frame[:15] + bytes([frame[15] - 1]) + frame[16:24] + total.to_bytes(2, "big") + frame[26:]


def state(switch: Switch, setup: Setup) -> list[object]:
    """Return slot halves and counters, without what Tofino counts differently.

    A packet that completes a round, or the rack's round, counts once there; and bytes at egress are those that leave.
    """
    outcomes = {OUTCOME_NAMES[cell]: count for cell, count in switch.client.read_counters(OUTCOMES).items()}
    for name in ("started", "added", "stored"):
        outcomes.pop(name, None)
    lost_at_egress = {port: packets for port, (packets, _) in switch.client.read_counters(LOSSES_OUT).items()}
    counters = [switch.client.read_counters(name) for name in (FORGERIES, LOSSES_IN)]
    return [*(switch.query(half) for half in setup.halves), outcomes, *counters, lost_at_egress]


def compared(left: TofinoSwitch, right: Switch, frames: int, seed: int) -> Report:
    """Return the first difference between two switches that get the same traffic."""
    right.can_be_leaf = left.can_be_leaf
    return compare(left, right, frames, seed, traffic_of=Traffic if left.guards_keys else Faithful, state=state)


@pytest.mark.parametrize(
    ("frames", "seed"),
    [
        (200, 1),
        pytest.param(600, 2, marks=pytest.mark.slow),
        *(pytest.param(5000, seed, marks=pytest.mark.slow) for seed in range(3, 7)),
    ],
)
@pytest.mark.parametrize(
    "profile", [PROFILES[0], *(pytest.param(profile, marks=pytest.mark.slow) for profile in PROFILES[1:])]
)
def test_as_bmv2(profile: str, frames: int, seed: int) -> None:
    with ExitStack() as running:
        try:
            left = running.enter_context(TofinoSwitch(profile))
            right = running.enter_context(Switch("sim", bmv2(tofino.PROFILES[profile].block_size)))
        except Unavailable as missing:
            pytest.skip(str(missing))
        report = compared(left, right, frames, seed)
        assert report.difference is None, str(report)
        if frames >= 5000:
            # Every kind has happened. Without a parent, two do not.
            assert len(right.counts()) == len(OUTCOME_NAMES) - (0 if left.can_be_leaf else 2)


# Name -> file, what stands there, what takes its place: each must show.
CHANGES = {
    "newer": ("slot_state.p4", "- (int<32>)than > 0)", "- (int<32>)than >= 0)"),
    "reset": ("slot_state.p4", "round.live = hdr.aggregation.seq + 1;", "round.live = hdr.aggregation.seq;"),
    "same operation": (
        "slot_state.p4",
        "(STEP_DATA,  0, 1, 1) : count_worker();",
        "(STEP_DATA,  0, 1, _) : count_worker();",
    ),
    "marks": ("slot_state.p4", "fingerprint = fingerprint | IS_MARKED;", "fingerprint = fingerprint;"),
    "counted": ("lane.p4", "            REPEAT_32(READ_ROW) \\\n", ""),
    "second sums": ("pair.p4", "result = sum.second;", "result = sum.first;"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_shows(tmp_path: Path, name: str) -> None:
    file, there, instead = CHANGES[name]
    try:
        right_program = bmv2(64)
    except Unavailable as missing:
        pytest.skip(str(missing))
    sources = tmp_path / "p4src"
    shutil.copytree(P4SRC, sources, ignore=shutil.ignore_patterns("compiled", "__pycache__"))
    changed = sources / "tna" / file
    text = changed.read_text()
    assert text.count(there) == 1, f"{file} has changed: {there!r} stands there {text.count(there)} times"
    changed.write_text(text.replace(there, instead))
    try:
        program = build("tofino1-64", sources)
    except Unavailable as missing:
        pytest.skip(str(missing))
    shown = False
    for seed in (1, 2):
        with TofinoSwitch("tofino1-64", program) as left, Switch("sim", right_program) as right:
            shown = shown or compared(left, right, 600, seed).difference is not None
    assert shown
