# SPDX-License-Identifier: Apache-2.0
"""The limit on HELLOs passes and drops the same ones as the P4 program in sim, to the nanosecond."""

from __future__ import annotations

from random import Random

import pytest

from p4reduce_targets import native, sim
from p4reduce_targets.dataplane import MeterConfig
from p4reduce_targets.native.numbers import METER_LIMIT
from tests.support.dataplane import frames
from tests.support.dataplane.direct import Direct
from tests.support.dataplane.fuzz import counters
from tests.support.dataplane.switch import HELLOS, SHIPPED, SWITCH

SECOND = 10**9
CONFIG = (SHIPPED / "p4reduce.json").read_bytes()
HELLO = frames.frame(
    frames.Host("02:00:00:00:00:61", "10.0.0.61", 40001), SWITCH, frames.Aggregation(op=frames.HELLO, keys=(0,) * 4)
)


def passed(switch: Direct, port: int = 1) -> int:
    return len(switch.exchange((port, HELLO)).packet_ins)


@pytest.mark.parametrize("seed", range(2))
def test_as_the_program_has_it(seed: int) -> None:
    random, now = Random(seed), [1]
    plane = native.load(CONFIG)
    switches = Direct("sim", sim.load(CONFIG, clock=lambda: now[0]), SHIPPED), Direct("native", plane, SHIPPED)
    for switch in switches:
        switch.own_address()
    told = [0, 0]
    for _ in range(3000):
        if random.random() < 0.03:
            rate = random.choice([0, 1, 3, 7, 1000, 999_983, METER_LIMIT])
            burst = random.choice([0, 1, 2, 20, 1000, METER_LIMIT])
            limited = random.randint(1, 2)
            for switch in switches:
                switch.limit_hellos(limited, rate, burst)
        now[0] += random.choice([0, 0, 1, 1000, SECOND // 3, SECOND // 7, SECOND, 10**15, random.randrange(SECOND)])
        plane.set_time(now[0])
        port = random.randint(1, 3)
        wanted, found = (passed(switch, port) for switch in switches)
        assert found == wanted
        told[found] += 1
    assert min(told) > 20
    assert counters(switches[0]) == counters(switches[1])


def test_without_a_clock_of_the_tests_the_machines_counts() -> None:
    switch = Direct("native", native.load(CONFIG), SHIPPED)
    switch.own_address()
    switch.limit_hellos(1, METER_LIMIT, 1)  # a token each nanosecond
    assert [passed(switch) for _ in range(100)] == [1] * 100
    switch.limit_hellos(1, 0, 1)
    assert [passed(switch) for _ in range(3)] == [1, 0, 0]


def test_what_is_no_limit() -> None:
    plane = native.load(CONFIG)
    with pytest.raises(KeyError, match="there is no meter other"):
        plane.set_meter("other", 0, None)
    with pytest.raises(ValueError, match=r"index 512 is not in 0\.\.511"):
        plane.set_meter(HELLOS, 512, None)
    with pytest.raises(ValueError, match="up to 4294967295 are accepted"):
        plane.set_meter(HELLOS, 1, MeterConfig(1, 1, 1, 1 << 32))
