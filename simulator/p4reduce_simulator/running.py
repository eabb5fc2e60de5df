# SPDX-License-Identifier: Apache-2.0
"""One run: a workload on a network, and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.collectives.plan import Taken
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, DEFAULT_LANES
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.protocol.operation import Zeros
from p4reduce_simulator import elements
from p4reduce_simulator.network import Network
from p4reduce_simulator.simulation import PS, Simulation
from p4reduce_simulator.workload import Workload, exact_sum

_JITTER, _CLOCK = 2, 3  # random sequences
_PAUSE_S = 0.1  # before operations, in which queues and token buckets recover


@dataclass(frozen=True)
class LinkUse:
    """One direction of a cable, and the packets and bytes that it carried. Bytes include Ethernet's overhead.

    dropped: packets for which the queue had no room; lost: packets lost at random; marked: packets marked by ECN.
    longest_wait: the longest time in seconds that a packet waited for the link.
    utilisation: the share of the run in which the link was busy; 0 for a link without a rate.
    recorded: the bytes of each interval, if intervals were recorded.
    """

    source: str
    destination: str
    packets: int
    bytes: int
    dropped: int
    lost: int
    marked: int
    longest_wait: float
    utilisation: float
    recorded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Result:
    """The result of a simulation. Times are in seconds of virtual time, except `wall`.

    times: for each operation, the time from its first rank's start to its last rank's end.
    rank_times: for each operation, each rank's time from its own start to its own end.
    exact: whether each rank's result was compared with the exact sum and is equal to it.
    right: whether each result is exact or, for tensors of a file, has the bits that the protocol specifies.
    totals: the workers' counters, added over the ranks.
    outcomes: for each switch, the number of packets by outcome.
    strays: packets that no rank or link took.
    now: the length of the run, without the warm-up.
    events, digest: how many events there were, and a hash of them, warm-up included. Equal digests mean that all
        packets were equal, and at equal times.
    """

    network: str
    ranks: int
    times: tuple[float, ...]
    rank_times: tuple[tuple[float, ...], ...]
    exact: bool
    right: bool
    totals: dict[str, float]
    links: tuple[LinkUse, ...]
    outcomes: dict[str, dict[str, int]]
    strays: int
    events: int
    digest: str
    interval: float
    now: float
    wall: float

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the ranks' operations ended."""
        return float(np.quantile(np.array(self.rank_times), share))

    def between_switches(self) -> list[LinkUse]:
        return [link for link in self.links if not {link.source[:4], link.destination[:4]} & {"rank"}]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"percentiles": {str(at): self.percentile(at) for at in (0.5, 0.9, 0.99, 1.0)}}


def simulate(
    network: Network,
    workload: Workload,
    *,
    seed: int = 0,
    slots: int = 64,
    lanes: int = DEFAULT_LANES,
    block_size: int = DEFAULT_BLOCK_SIZE,
    until: float = 3600.0,
    record: float = 0.0,
    pcap: Path | None = None,
    wall_limit: float = 86400.0,
    zeros: Zeros = "skipped",
    layout: Taken = "blocks",
) -> Result:
    """Simulate the workload on the network.

    Raises TimeoutError if an operation has not ended at the virtual time `until`, or after `wall_limit` seconds.

    slots, lanes, block_size: the job's slots, and the form of its packets.
    pcap: a file that gets each packet, with its time, headers and keys.
    record: the interval in seconds at which the bytes on links are recorded; 0 records none.
    zeros: how blocks of zeros are treated: "sent" is SwitchML's way.
    layout: "elements" takes one operation alone, without the warm-up, whose layout is always by blocks.
    """
    if layout == "elements" and (workload.operations > 1 or zeros == "sent"):
        raise ValueError("one allreduce by elements is simulated, and skips zeros")
    began = time.monotonic()
    clocks = _clocks(workload, len(network.ranks), seed)
    form = {"slots": slots, "lanes": lanes, "block_size": block_size}
    with Simulation(network, seed, clocks=clocks, **form) as simulation:
        limits = _Limits(until, began + wall_limit)
        exact = right = True
        for number in range(workload.warm_up):
            one = replace(workload, operations=1, late=0.0, jitter=0.0).first(workload.warm_up_numel or workload.numel)
            starts = _starts(simulation, one, seed)
            _, was_exact, was_right = _reduce(simulation, one, starts, seed, -1 - number, limits, zeros)
            exact, right = exact and was_exact, right and was_right
        before = _Counters.of(simulation)
        starts = _starts(simulation, workload, seed)
        if record:
            simulation.record(record, starts.min())
        if pcap:
            simulation.capture(pcap)
        if layout == "elements":
            spans, was_exact, was_right = _reduce_elements(simulation, workload, starts, seed, limits)
        else:
            spans, was_exact, was_right = _reduce(simulation, workload, starts, seed, 0, limits, zeros)
        simulation.end_capture()
        sums = exact and was_exact, right and was_right
        return _result(simulation, before, spans, *sums, record, time.monotonic() - began)


@dataclass(frozen=True)
class _Limits:
    until: float
    deadline: float  # of time.monotonic


def _reduce(
    simulation: Simulation,
    workload: Workload,
    starts: npt.NDArray[np.float64],
    seed: int,
    first: int,
    limits: _Limits,
    zeros: Zeros,
) -> tuple[list[tuple[float, float]], bool, bool]:
    """Run the workload's allreduces.

    Return each rank's start and end of each, whether all sums are exact, and whether all are right.
    """
    ranks = len(simulation.network.ranks)
    numbers: list[int] = []
    arrays: list[npt.NDArray[Any]] = []
    totals: list[npt.NDArray[Any]] = []
    for operation in range(workload.operations):
        total = None
        for rank, values in enumerate(workload.tensors(ranks, seed, first + operation + workload.warm_up)):
            total = exact_sum(total, values)
            arrays.append(values)
            numbers.append(simulation.submit(rank, values, starts[rank] + operation * workload.interval, zeros))
        assert total is not None
        totals.append(total)
    simulation.run(limits.until, limits.deadline)
    spans = [simulation.operation(number) for number in numbers]
    simulation.forget_arrays()
    exact = all(np.array_equal(values, totals[index // ranks]) for index, values in enumerate(arrays))
    right = exact or (
        workload.file is not None and _are_specified(list(workload.tensors(ranks, 0)), simulation, arrays)
    )
    return spans, exact, right


def _reduce_elements(
    simulation: Simulation, workload: Workload, starts: npt.NDArray[np.float64], seed: int, limits: _Limits
) -> tuple[list[tuple[float, float]], bool, bool]:
    """Run one allreduce by elements, as `_reduce` runs those by blocks."""
    tensors = list(workload.tensors(len(simulation.network.ranks), seed, workload.warm_up))
    spans, there, sums = elements.allreduce(
        simulation, tensors, starts, lambda: simulation.run(limits.until, limits.deadline)
    )
    total = None
    for values in tensors:
        total = exact_sum(total, values[there])
    assert total is not None
    exact = all(np.array_equal(values, total) for values in sums)
    right = exact or (
        workload.file is not None and _are_specified([values[there] for values in tensors], simulation, sums)
    )
    return spans, exact, right


def _are_specified(
    tensors: Sequence[npt.NDArray[Any]], simulation: Simulation, results: Sequence[npt.NDArray[Any]]
) -> bool:
    """Return whether the results have the bits that the protocol specifies: floats are rounded."""
    expected = reference_allreduce(tensors, block_size=simulation.block_size)
    return all(np.array_equal(values, expected, equal_nan=expected.dtype.kind == "f") for values in results)


@dataclass(frozen=True)
class _Counters:
    """The counters of a simulation at a time, to be subtracted from later ones."""

    now: float
    links: Sequence[Mapping[str, int]]
    ranks: Sequence[Mapping[str, float]]
    outcomes: Mapping[str, Counter[str]]

    @classmethod
    def of(cls, simulation: Simulation) -> _Counters:
        network = simulation.network
        return cls(
            simulation.now,
            [simulation.link_counts(link) for link in range(len(simulation.links))],
            [asdict(simulation.stats(rank)) for rank in range(len(network.ranks))],
            {switch: Counter(simulation.outcomes(switch)) for switch in network.switches},
        )


def _result(
    simulation: Simulation,
    before: _Counters,
    spans: Sequence[tuple[float, float]],
    exact: bool,
    right: bool,
    record: float,
    wall: float,
) -> Result:
    network = simulation.network
    ranks = len(network.ranks)
    by_operation = [spans[at : at + ranks] for at in range(0, len(spans), ranks)]
    after, began = _Counters.of(simulation), min(start for start, _ in spans)
    totals: Counter[str] = Counter()
    for stats, earlier in zip(after.ranks, before.ranks, strict=True):
        totals.update({name: value - earlier[name] for name, value in stats.items() if name != "seconds"})
    return Result(
        network.name,
        ranks,
        tuple(max(end for _, end in one) - min(start for start, _ in one) for one in by_operation),
        tuple(tuple(end - start for start, end in one) for one in by_operation),
        exact,
        right,
        dict(totals),
        tuple(_link_use(simulation, index, before, after, began) for index in range(len(simulation.links))),
        {switch: dict(outcomes - before.outcomes[switch]) for switch, outcomes in after.outcomes.items()},
        simulation.strays,
        simulation.events,
        simulation.digest,
        record,
        after.now - began,
        wall,
    )


def _link_use(simulation: Simulation, index: int, before: _Counters, after: _Counters, began: float) -> LinkUse:
    elapsed, rate = after.now - began, simulation.rates[index]
    used = {name: value - before.links[index][name] for name, value in after.links[index].items()}
    return LinkUse(
        *simulation.links[index],
        used["packets"],
        used["bytes"],
        used["dropped"],
        used["lost"],
        used["marked"],
        after.links[index]["longest_wait"] / PS,
        8 * used["bytes"] / rate / elapsed if rate and elapsed else 0.0,
        tuple(simulation.recorded(index)),
    )


def _starts(simulation: Simulation, workload: Workload, seed: int) -> npt.NDArray[np.float64]:
    """Return when each rank's first operation is to start, after a pause."""
    ranks = len(simulation.network.ranks)
    starts = simulation.now + _PAUSE_S + np.random.default_rng([seed, _JITTER]).uniform(0, workload.jitter, ranks)
    starts[-1] += workload.late
    return starts


def _clocks(workload: Workload, ranks: int, seed: int) -> list[tuple[float, float]]:
    rng = np.random.default_rng([seed, _CLOCK])
    offsets = rng.uniform(0, workload.skew, ranks)
    drifts = rng.uniform(-workload.drift, workload.drift, ranks)
    return [(float(offset), float(drift)) for offset, drift in zip(offsets, drifts, strict=True)]
