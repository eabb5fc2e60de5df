# SPDX-License-Identifier: Apache-2.0
"""The limit on HELLOs passes and drops the same ones as the P4 program in sim, to the nanosecond."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from p4reduce_targets import native, sim
from p4reduce_targets.dataplane import MeterConfig
from p4reduce_targets.native.numbers import METER_LIMIT
from tests.support.dataplane import frames
from tests.support.dataplane.p4runtime import Program
from tests.support.dataplane.switch import HELLOS, SWITCH

from .direct import Direct

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled"
SECOND = 10**9


@pytest.mark.parametrize("seed", range(6))
def test_as_the_program_has_it(seed: int) -> None:
    program = Program(COMPILED / "p4info.txtpb", COMPILED / "p4reduce.json")
    random, now = Random(seed), [1]
    left = Direct("sim", sim.load(program.config, clock=lambda: now[0]), program)
    plane = native.load(program.config)
    plane.set_time(now[0])
    right = Direct("native", plane, program)
    hello = frames.Aggregation(op=frames.HELLO, keys=(0,) * program.lanes)
    frame = frames.frame(frames.Host("02:00:00:00:00:61", "10.0.0.61", 40001), SWITCH, hello)
    for switch in (left, right):
        switch.own_address()
    told = dropped = 0
    for _ in range(3000):
        if random.random() < 0.03:
            rate = random.choice([0, 1, 3, 7, 1000, 999_983, METER_LIMIT])
            burst = random.choice([0, 1, 2, 20, 1000, METER_LIMIT])
            port = random.randint(1, 2)
            for switch in (left, right):
                switch.limit_hellos(port, rate, burst)
        now[0] += random.choice([0, 0, 1, 1000, SECOND // 3, SECOND // 7, SECOND, 10**15, random.randrange(SECOND)])
        plane.set_time(now[0])
        port = random.randint(1, 3)
        wanted, found = (switch.exchange((port, frame)) for switch in (left, right))
        assert found == wanted
        told += len(found.packet_ins)
        dropped += not found.packet_ins
    assert told > 20
    assert dropped > 20
    assert left.state([]) == right.state([])


def test_without_a_clock_of_the_tests_the_machines_counts() -> None:
    program = Program(COMPILED / "p4info.txtpb", COMPILED / "p4reduce.json")
    plane = native.load(program.config)
    direct = Direct("native", plane, program)
    direct.own_address()
    hello = frames.Aggregation(op=frames.HELLO, keys=(0,) * program.lanes)
    frame = frames.frame(frames.Host("02:00:00:00:00:61", "10.0.0.61", 40001), SWITCH, hello)
    direct.limit_hellos(1, METER_LIMIT, 1)  # a token each nanosecond
    for _ in range(100):
        assert len(direct.exchange((1, frame)).packet_ins) == 1
    direct.limit_hellos(1, 0, 1)
    assert [len(direct.exchange((1, frame)).packet_ins) for _ in range(3)] == [1, 0, 0]


def test_what_is_no_limit() -> None:
    plane = native.load((COMPILED / "p4reduce.json").read_bytes())
    with pytest.raises(KeyError, match="there is no meter other"):
        plane.set_meter("other", 0, None)
    with pytest.raises(ValueError, match=r"index 512 is not in 0\.\.511"):
        plane.set_meter(HELLOS, 512, None)
    with pytest.raises(ValueError, match="up to 4294967295 are accepted"):
        plane.set_meter(HELLOS, 1, MeterConfig(1, 1, 1, 1 << 32))
