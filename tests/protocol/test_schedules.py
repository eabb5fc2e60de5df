# SPDX-License-Identifier: Apache-2.0
"""Thousands of schedules of loss, duplication, delay and reordering: every rank gets the reference's bits.

P4REDUCE_SCHEDULES sets how many are run; P4REDUCE_SEED runs the one schedule of a seed that a failure has named.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from p4reduce.protocol.constants import Outcome
from tests.support.protocol.scenarios import (
    call,
    random_array,
    random_calls,
    random_membership,
    reduce_calls,
)
from tests.support.protocol.schedules import BATCHES, ONE_SEED, SCHEDULES, batches, run_schedule
from tests.support.protocol.simulator import Network, Simulation

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def run_seeds(seeds: range | list[int], *, tree: bool = False) -> None:
    for seed in seeds:
        try:
            run_schedule(seed, tree=tree, limited=seed % 4 == 0)
        except Exception as error:
            raise AssertionError(f"run it again: P4REDUCE_SEED={seed} pytest {__file__}") from error


@batches
def test_every_rank_gets_the_same_right_bits(batch: int) -> None:
    run_seeds([int(ONE_SEED)] if ONE_SEED else range(batch, SCHEDULES, BATCHES))


@batches
def test_below_several_leaves_too(batch: int) -> None:
    """Packets get lost, late and out of order between leaves and spine as well."""
    run_seeds([int(ONE_SEED)] if ONE_SEED else range(batch, SCHEDULES // 4, BATCHES), tree=True)


def test_a_seed_is_a_schedule() -> None:
    first, again = run_schedule(7), run_schedule(7)
    assert first.now == again.now
    assert first.sent == again.sent


def test_schedules_visit_every_case() -> None:
    """The random schedules would prove little if they kept away from the hard cases."""
    seen = dict.fromkeys(Outcome, 0)
    retransmissions = stale = statuses = slowdowns = 0
    for seed in range(60):
        simulation = run_schedule(seed, limited=seed % 4 == 0)
        for outcome, count in simulation.switch.outcomes.items():
            seen[outcome] += count
        retransmissions += sum(worker.stats.retransmissions for worker in simulation.workers)
        stale += sum(worker.stats.stale for worker in simulation.workers)
        statuses += sum(worker.stats.statuses for worker in simulation.workers)
        slowdowns += sum(worker.stats.slowdowns for worker in simulation.workers)
    wanted = ("STARTED", "ADDED", "COMPLETED", "STALE", "AHEAD", "REPLAYED", "NOT_ADMITTED")
    assert all(seen[Outcome[name]] > 0 for name in wanted)
    assert min(retransmissions, stale, statuses, slowdowns) > 0


def test_schedules_of_trees_visit_every_case() -> None:
    spine, leaves = dict.fromkeys(Outcome, 0), dict.fromkeys(Outcome, 0)
    for seed in range(80):
        simulation = run_schedule(seed, tree=True)
        for outcome in Outcome:
            spine[outcome] += simulation.switch.outcomes[outcome]
            leaves[outcome] += sum(leaf.outcomes[outcome] for leaf in simulation.leaves)
    for name in ("STARTED", "ADDED", "COMPLETED", "STALE", "AHEAD", "REPLAYED"):
        assert min(spine[Outcome[name]], leaves[Outcome[name]]) > 0, name
    assert leaves[Outcome.SENT_UP] > leaves[Outcome.STORED] > 0  # some more than once
    assert leaves[Outcome.STORED] == leaves[Outcome.COMPLETED]


@pytest.mark.parametrize(
    ("size", "most"), [(33, 11), (255, 31), pytest.param(992, 31, marks=pytest.mark.slow)], ids=str
)
def test_more_workers_than_a_switch_has(size: int, most: int) -> None:
    """Racks of so many ranks below one switch, up to as many as there can be."""
    random = Random(size)
    racks = [list(range(first, min(first + most, size))) for first in range(0, size, most)]
    changes = {"world_size": size, "peers": tuple(racks[0]), "slots": 2, "block_size": 4}
    membership = replace(random_membership(random), **changes)
    calls = [call([random_array(random, 100, 4, dtype) for _ in range(size)], 4) for dtype in (np.float32, np.int32)]
    simulation = Simulation(membership, seed=size, network=Network(loss=0.02, delay=0.001), racks=racks)
    reduce_calls(simulation, calls)


@pytest.mark.parametrize("racks", [(), ((0, 2), (1,))], ids=["one switch", "two leaves"])
def test_almost_everything_is_lost(racks: tuple[tuple[int, ...], ...]) -> None:
    random = Random(1)
    membership = replace(random_membership(random), world_size=3)
    simulation = Simulation(membership, seed=1, network=Network(loss=0.7), racks=racks)
    reduce_calls(simulation, random_calls(random, membership), limit=1e6)
