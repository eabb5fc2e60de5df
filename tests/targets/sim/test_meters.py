# SPDX-License-Identifier: Apache-2.0
"""Token buckets, by a clock in the test's hands."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from p4reduce_targets.dataplane import MeterConfig
from p4reduce_targets.sim.meters import GREEN, RED, YELLOW, MeterArray

SECOND = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


def test_a_cell_without_configuration_is_green() -> None:
    meter = MeterArray(2, Clock())
    meter.configure(1, MeterConfig(0, 0, 0, 0))
    for index, colour in ((0, GREEN), (1, RED)):
        meter.execute(index, 1)
        assert meter.colour == colour
    meter.configure(1, None)
    meter.execute(1, 1)
    assert meter.colour == GREEN


def test_a_token_is_there_in_its_very_nanosecond() -> None:
    clock = Clock()
    meter = MeterArray(1, clock)
    meter.configure(0, MeterConfig(3, 1, 3, 1))
    found = []
    for elapsed in (0, 0, 333_333_333, 1, 333_333_333, 0, 1):
        clock.now += elapsed
        meter.execute(0, 1)
        found.append(meter.colour)
    assert found == [GREEN, RED, RED, GREEN, RED, RED, GREEN]


@pytest.mark.parametrize("seed", range(5))
def test_as_rfc_2698_has_it(seed: int) -> None:
    """The reference computes the same with fractions, from all packets since the start."""
    random, clock = Random(seed), Clock()
    meter = MeterArray(1, clock)
    cir, pir = sorted(random.choices([0, 1, 3, 7, 1000, 999_983], k=2))
    cburst, pburst = random.choices([1, 2, 20, 1000], k=2)
    meter.configure(0, MeterConfig(cir, cburst, pir, pburst))
    committed, peak = Fraction(cburst), Fraction(pburst)
    for _ in range(2000):
        elapsed = random.choice([0, 1, 1000, SECOND // 7, SECOND, random.randrange(SECOND)])
        clock.now += elapsed
        committed = min(Fraction(cburst), committed + Fraction(elapsed * cir, SECOND))
        peak = min(Fraction(pburst), peak + Fraction(elapsed * pir, SECOND))
        amount = random.choice([1, 1, 2, 9])
        wanted = RED if peak < amount else YELLOW if committed < amount else GREEN
        peak -= amount if wanted != RED else 0
        committed -= amount if wanted == GREEN else 0
        meter.execute(0, amount)
        assert meter.colour == wanted
