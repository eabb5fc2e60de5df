# SPDX-License-Identifier: Apache-2.0
"""Random traffic comes out of the program for Tofino as it does of the one for BMv2, byte for byte."""

from __future__ import annotations

import struct
import zlib
from contextlib import ExitStack

import pytest

from tests.dataplane.fuzz import describe, outcome
from tests.dataplane.switch import LOSSES_IN, LOSSES_OUT, OUTCOME_NAMES, OUTCOMES, Switch
from tests.dataplane.targets import Unavailable
from tests.dataplane.traffic import Setup, Step, Traffic

from .builds import PROFILES, TofinoSwitch, bmv2, tofino

pytestmark = pytest.mark.p4c


class Faithful(Traffic):
    """A worker announces the same keys each time that it sends its packet of a round.

    Tofino 1 has no stage left to tell who is counted before it takes the minimum, so there another key would count.
    """

    def _frame(self, kind: str, port: int, frame: bytes) -> Step:
        keys = slice(60, 60 + 4 * self._lanes)
        if len(frame) >= keys.stop:
            worker_job, slot_seq = frame[45:48], frame[50:56]
            least = [zlib.crc32(worker_job + slot_seq + bytes([lane])) for lane in range(self._lanes)]
            frame = frame[: keys.start] + struct.pack(f"!{self._lanes}I", *least) + frame[keys.stop :]
        return super()._frame(kind, port, frame)


def state(switch: Switch, setup: Setup) -> dict[str, object]:
    """Slot halves and counters. Where Tofino counts otherwise, what both can tell.

    A round's last packet is completed only for Tofino; and it counts bytes at egress as they are there.
    """
    outcomes = {OUTCOME_NAMES[cell]: count for cell, count in switch.client.read_counters(OUTCOMES).items()}
    entered = [outcomes.pop(name, (0, 0)) for name in ("started", "added")]
    if isinstance(switch, TofinoSwitch):
        entered.append(outcomes.get("completed", (0, 0)))
    outcomes["entered"] = (sum(packets for packets, _ in entered), sum(size for _, size in entered))
    return {
        "halves": [switch.query(half) for half in setup.halves],
        "outcomes": outcomes,
        "lost at ingress": switch.client.read_counters(LOSSES_IN),
        "lost at egress": {port: packets for port, (packets, _) in switch.client.read_counters(LOSSES_OUT).items()},
    }


@pytest.mark.parametrize(
    ("frames", "seed"),
    [(600, 1), (600, 2), *(pytest.param(5000, seed, marks=pytest.mark.slow) for seed in range(3, 7))],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_as_bmv2(profile: str, frames: int, seed: int) -> None:
    guarded = tofino.PROFILES[profile].tofino > 1
    with ExitStack() as running:
        try:
            left = running.enter_context(TofinoSwitch(profile))
            right = running.enter_context(Switch("sim", bmv2(tofino.PROFILES[profile].block_size)))
        except Unavailable as missing:
            pytest.skip(str(missing))
        setups = {switch: Setup(switch) for switch in (left, right)}
        for switch, setup in setups.items():
            setup.install(switch)
        kind = Traffic if guarded else Faithful
        traffic = kind(setups[left], seed, left.lanes, left.block_size, left.halves)
        for index in range(frames):
            step = next(traffic)
            results = [outcome(switch, step) for switch in (left, right)]
            assert results[0] == results[1], (
                f"seed {seed}, step {index}: {step.what}\nTofino\n{describe(results[0])}\nBMv2\n{describe(results[1])}"
            )
        left_state, right_state = (state(switch, setups[switch]) for switch in (left, right))
        assert left_state == right_state
        if frames >= 5000:
            assert len(right.counts()) == len(OUTCOME_NAMES)  # every kind of outcome has happened
