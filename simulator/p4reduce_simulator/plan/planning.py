# SPDX-License-Identifier: Apache-2.0
"""A plan: simulated times at two sizes, from which that of the whole gradient follows, and the same with changes.

An allreduce streams: after a start, each further element takes as long as the one before. So its time is a + b * u for
u elements that are not zero in the sum, or for all elements if zeros are sent too, provided that there are enough for
several rounds of each slot. Two simulations give a and b. `tests/simulator/test_plan.py` compares such times with
simulations of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from p4reduce.collectives.plan import Taken
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES
from p4reduce_simulator.network import Host, Link, Network
from p4reduce_simulator.peers.algorithms import SYSTEMS
from p4reduce_simulator.peers.comparison import BY_ELEMENTS
from p4reduce_simulator.peers.player import play
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.plan.gradients import Gradients
from p4reduce_simulator.running import simulate

_SHARE = 4  # the larger sample, in units of the smaller one
_ROUNDS = 4  # of each slot in the smaller sample
_MOST = 1 << 28  # elements of all ranks' samples together
_LEAST_ROUNDS = 2  # of each slot in the larger sample
_MOST_SLOTS = 32768
_WORTH = 1.05  # of a speed-up that is mentioned
_TOLERANCE = 0.8  # of the time that links need at least
_DENSE = ("ring", "halving-doubling", "parameter-server")


class NotLinearError(ValueError):
    """Two samples from which no time follows: waits for lost packets hide the time that the links need."""


@dataclass(frozen=True)
class Setup:
    """Equipment that exists or is to be bought, with the processor times of hosts; slots and block size of the job."""

    network: Network
    slots: int
    block_size: int = DEFAULT_BLOCK_SIZE
    seed: int = 0


@dataclass(frozen=True)
class Estimate:
    """The time of an allreduce in seconds, and the two simulations from which it follows: elements and seconds."""

    time: float
    samples: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Change:
    """A change of the setup, what it relieves, and p4reduce's time with it."""

    name: str
    relieves: str
    estimate: Estimate


@dataclass(frozen=True)
class Plan:
    """The estimates of p4reduce, of other systems, and of p4reduce with each change; the most useful change first.

    density, blocks: the shares of a rank's elements and blocks that are not zero; blocks_of_sum: of the sum's blocks.
    """

    gradients: str
    numel: int
    density: float
    blocks: float
    blocks_of_sum: float
    ranks: int
    ours: Estimate
    others: Mapping[str, Estimate]
    changes: Sequence[Change]

    def speed_up(self, system: str) -> float:
        return self.others[system].time / self.ours.time

    def gain(self, change: Change) -> float:
        return self.ours.time / change.estimate.time

    @property
    def binds(self) -> str:
        """The part of the setup that p4reduce's time depends on most."""
        worthwhile = self.worthwhile()
        return worthwhile[0].relieves if worthwhile else "nothing that was tried"

    def worthwhile(self) -> list[Change]:
        """Return the changes that make p4reduce faster, the most useful first."""
        return [change for change in self.changes if self.gain(change) >= _WORTH]

    def as_json(self) -> dict[str, Any]:
        speed_ups = {system: self.speed_up(system) for system in self.others}
        gains = {change.name: self.gain(change) for change in self.changes}
        return asdict(self) | {"binds": self.binds, "speed_ups": speed_ups, "gains": gains}


def plan(
    setup: Setup,
    gradients: Gradients,
    systems: Sequence[str],
    done: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Simulate p4reduce, the other systems, and p4reduce with each change. `done` is called with each one's name.

    Other systems' hosts have no processor times, as if all of them were RDMA.
    """
    ranks = len(setup.network.ranks)
    small = smaller_sample(setup, gradients)
    if not _is_enough(setup, gradients.numel, small):
        raise ValueError(
            f"{setup.slots} slots and {ranks} workers: a simulation of so many is too large: use fewer slots"
        )
    ours = time_of_ours(setup, gradients, small)
    done("p4reduce")
    others = {}
    for system in systems:
        others[system] = time_of(system, setup, gradients, small)
        done(system)
    changes = []
    for name, relieves, changed in changes_of(setup):
        if not _is_enough(changed, gradients.numel, small):
            continue
        try:
            changes.append(Change(name, relieves, time_of_ours(changed, gradients, small)))
        except NotLinearError:
            continue
        done(name)
    changes.sort(key=lambda change: change.estimate.time)
    support = Support(gradients.sample(small), ranks, setup.seed)
    density, shares = support.nonzero / support.numel, _shares_of_blocks(support, setup.block_size)
    return Plan(gradients.name, gradients.numel, density, *shares, ranks, ours, others, tuple(changes))


def changes_of(setup: Setup) -> list[tuple[str, str, Setup]]:
    """Return the changes that are tried: a name, what each relieves, and the changed setup."""
    network, host = setup.network, setup.network.host
    found = [
        (
            "links twice as fast",
            "the link",
            replace(setup, network=_with_links(network, lambda link: replace(link, rate=2 * link.rate))),
        ),
        (
            "no delays",
            "round trips",
            replace(
                setup,
                network=replace(
                    _with_links(network, lambda link: replace(link, delay=0.0)),
                    switch=replace(network.switch, delay=0.0),
                ),
            ),
        ),
    ]
    if 4 * setup.slots <= _MOST_SLOTS:
        found.append(("4 times the slots", "slots", replace(setup, slots=4 * setup.slots)))
    if host != Host():
        faster = replace(setup, network=replace(network, host=host.with_threads(2)))
        found.append(("twice the engine threads", "the processor", faster))
    if setup.block_size == DEFAULT_BLOCK_SIZE:
        found.append(
            ("blocks of 256", "headers" if host == Host() else "the processor", replace(setup, block_size=256))
        )
    return found


def estimate(
    measure: Callable[[Support], float],
    gradients: Gradients,
    small: int,
    ranks: int,
    *,
    seed: int = 0,
    dense: bool = False,
    least: float = 0.0,
) -> Estimate:
    """Return the time of all elements, by the line through two measurements; by one of the whole if it is small.

    dense: whether the time depends on all elements, instead of those that are not zero in the sum.
    least: the seconds that links need for each of these elements. Raises NotLinearError if the samples take less.
    """
    if gradients.numel <= _SHARE * small:
        time = measure(Support(gradients.sample(gradients.numel), ranks, seed))
        return Estimate(time, ((gradients.numel, time),))
    samples, works = [], []
    for size in (small, _SHARE * small):
        support = Support(gradients.sample(size), ranks, seed)
        samples.append((support.numel, measure(support)))
        works.append(support.numel if dense else support.union(ranks))
    share = 1.0 if dense else gradients.union(ranks)
    whole = gradients.numel * (works[1] / samples[1][0] if share is None else share)
    (_, first), (_, second) = samples
    if works[1] > works[0] and second - first < _TOLERANCE * least * (works[1] - works[0]):
        raise NotLinearError(
            f"samples of {samples[0][0]} and {samples[1][0]} elements take {1e3 * first:.3g} and "
            f"{1e3 * second:.3g} ms, so waits for dropped packets hide the rest: "
            "use fewer slots, or a larger queue of --link and --core"
        )
    slope = (second - first) / (works[1] - works[0]) if works[1] > works[0] else 0.0
    return Estimate(max(second, second + slope * (whole - works[1])), tuple(samples))


def smaller_sample(setup: Setup, gradients: Gradients) -> int:
    """Return a size at which each slot has several rounds, also with the changes, and that all ranks fit in memory.

    Only blocks that are not zero take rounds. A first sample, without zeros large enough, says how many these are.
    """
    wanted = _ROUNDS * 4 * setup.slots * DEFAULT_LANES * setup.block_size  # 4: of changes_of
    ranks = len(setup.network.ranks)
    most = min(max(_MOST // ranks // _SHARE, DEFAULT_LANES * setup.block_size), gradients.numel)
    if wanted < most:
        _, share = _shares_of_blocks(Support(gradients.sample(wanted), ranks, setup.seed), setup.block_size)
        wanted = round(min(wanted / share, most)) if share else most
    return min(wanted, most)


def _shares_of_blocks(support: Support, size: int) -> tuple[float, float]:
    """Return the shares of blocks that are not zero: of a rank on average, and of the sum."""
    blocks = support.blocks(size)
    return float(np.mean(blocks)), float(np.logical_or.reduce(blocks).mean())


def _is_enough(setup: Setup, numel: int, small: int) -> bool:
    """Return whether the larger sample uses each slot a few times, if it is not the whole anyway."""
    rounds = _SHARE * small / (setup.slots * DEFAULT_LANES * setup.block_size)
    return numel <= _SHARE * small or rounds >= _LEAST_ROUNDS


def time_of_ours(setup: Setup, gradients: Gradients, small: int, layout: Taken = "blocks") -> Estimate:
    """Return p4reduce's time of an allreduce, from samples of `small` elements and more."""

    def measure(support: Support) -> float:
        result = simulate(
            setup.network,
            replace(support.workload, warm_up_numel=small),
            seed=setup.seed,
            slots=setup.slots,
            lanes=DEFAULT_LANES,
            block_size=setup.block_size,
            layout=layout,
        )
        if not result.right:
            raise ValueError("p4reduce: a sum is wrong")
        return result.times[0]

    rate = setup.network.edge.rate
    ranks = len(setup.network.ranks)
    if layout == "elements":  # indices and values of all ranks
        return estimate(measure, gradients, small, ranks, seed=setup.seed, dense=True)
    least = 32 / rate if rate else 0.0  # a rank receives each element of the sum that is not zero
    return estimate(measure, gradients, small, ranks, seed=setup.seed, least=least)


def time_of(system: str, setup: Setup, gradients: Gradients, small: int) -> Estimate:
    """Return another system's time, or that of p4reduce by elements. Hosts of other systems have no processor times."""
    if system == BY_ELEMENTS:
        return time_of_ours(setup, gradients, small, "elements")
    network, ranks = replace(setup.network, host=Host()), len(setup.network.ranks)

    def measure(support: Support) -> float:
        return play(network, SYSTEMS[system](support)).time

    return estimate(measure, gradients, small, ranks, seed=setup.seed, dense=system in _DENSE)


def _with_links(network: Network, change: Callable[[Link], Link]) -> Network:
    cables = tuple(replace(cable, link=cable.link and change(cable.link)) for cable in network.cables)
    return replace(network, edge=change(network.edge), core=change(network.core), cables=cables)
