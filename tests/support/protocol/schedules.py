# SPDX-License-Identifier: Apache-2.0
"""Random schedules of a whole job. A seed determines each; P4REDUCE_SEED runs the schedule of one seed again."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from p4reduce.protocol import Membership
from p4reduce.protocol.constants import Outcome
from tests.support.protocol.scenarios import (
    check_end,
    random_calls,
    random_membership,
    random_network,
    random_racks,
    reduce_calls,
)
from tests.support.protocol.simulator import Simulation

BATCHES, FEW = 20, 2
SCHEDULES = int(os.environ.get("P4REDUCE_SCHEDULES", "2000"))
ONE_SEED = os.environ.get("P4REDUCE_SEED")

# Random cases come in batches. `make test` runs the first ones.
batches = pytest.mark.parametrize(
    "batch",
    [0] if ONE_SEED else [*range(FEW), *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(FEW, BATCHES))],
)


def older_generation(membership: Membership, random: Random) -> Simulation:
    """Run the same job with the preceding generation to its end. Its packets can be replayed as late ones."""
    past = replace(membership, generation=membership.generation - 1)
    simulation = Simulation(past, seed=random.getrandbits(32))
    reduce_calls(simulation, random_calls(random, past))
    return simulation


def run_schedule(seed: int, *, tree: bool = False, limited: bool = False) -> Simulation:
    """Run the schedule of a seed, check its results, and return the simulation.

    tree: whether the ranks are below leaves and a spine.
    limited: whether pacing limits packets from the start, as after losses.
    """
    random = Random(seed)
    membership = random_membership(random)
    network = random_network(random)
    calls = random_calls(random, membership)
    racks = random_racks(random, membership) if tree else ()
    simulation = Simulation(membership, seed=seed, network=network, racks=racks)
    if limited:
        for worker in simulation.workers:
            worker._recovery.pace.window, worker._recovery.pace._ssthresh = random.uniform(2, 5), 2.0
    if random.random() < 0.2:
        past = older_generation(membership, random)
        for rank, (sent, received) in enumerate(zip(past.sent, past.received, strict=True)):
            for payload in sent:
                simulation.at(random.random() * 0.01, partial(simulation.to_switch, rank, payload))
            for payload in received:
                simulation.at(random.random() * 0.01, partial(simulation.to_worker, rank, payload))

    reduce_calls(simulation, calls, skew=random.choice([0, 0.001, 1.0]), limit=10_000 if tree else 1000)
    check_end(simulation, calls)
    assert len({worker.stats.blocks_received for worker in simulation.workers}) == 1
    for impossible in (Outcome.MISMATCH, Outcome.BAD_SLOT, Outcome.MALFORMED, Outcome.FORBIDDEN):
        assert sum(switch.outcomes[impossible] for switch in (simulation.switch, *simulation.leaves)) == 0
    return simulation
