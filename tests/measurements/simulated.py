# SPDX-License-Identifier: Apache-2.0
"""The simulator's times, compared with those of shaped links on this machine (root), and with those of ns-3."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from p4reduce_bench.allreduce.grid import Case, bits_per_second
from p4reduce_bench.allreduce.inputs import tensors
from p4reduce_simulator import Link, Network, Switch, Workload, clos, simulate, star
from tests.support import ns3

LINK, SLOTS = "10mbit", 32
# tbf's as p4reduce_bench.allreduce.links sets it, and half of a round trip of the native switch on a busy machine.
SHAPED = Link(rate=bits_per_second(LINK), delay=50e-6, queue=4_000_000, burst=16_000)
NATIVE = Switch(delay=50e-6)
LOSSES = (0.0, 0.01)
DENSITIES = (1.0, 0.1, 0.01)
WORKERS = (2, 4, 8)


@dataclass(frozen=True)
class Point:
    """One point: the seconds of both, and the packets that a rank sent again (measured; for ns-3, simulated)."""

    network: str
    ranks: int
    density: float
    loss: float
    simulated: float
    other: float
    resent: float

    @property
    def error(self) -> float:
        return self.simulated / self.other - 1


def shaped(numel: str, repeat: int) -> Iterator[Point]:
    """Yield the points of shaped links: medians of `repeat` runs of each."""
    with TemporaryDirectory() as folder:
        for loss in LOSSES:
            found = Path(folder, "found.json")
            command = [sys.executable, "-m", "p4reduce", "bench", "allreduce", "--systems", "p4reduce-blocks",
                       "--link", LINK, "--numel", numel, "--overlap", "random", "--sparsity", "block",
                       "--workers", ",".join(map(str, WORKERS)), "--density", ",".join(map(str, DENSITIES)),
                       "--drop-rate", str(loss), "--slots", str(SLOTS), "--repeat", str(repeat),
                       "--json", str(found)]  # fmt: skip
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            for row in json.loads(found.read_text())["rows"]:
                if row["error"] is not None:
                    raise RuntimeError(row["error"])
                case = Case(row["workers"], row["numel"], row["dtype"], row["density"], "random", "block")
                yield _as_measured(case, loss, row, Path(folder, "tensors.npy"), repeat)


def _as_measured(case: Case, loss: float, row: dict[str, Any], file: Path, repeat: int) -> Point:
    np.save(file, np.stack([tensors(case, rank)[0] for rank in range(case.workers)]))
    link = Link(**{**asdict(SHAPED), "loss": loss})
    network = Network("star", ("switch",), ("switch",) * case.workers, edge=link, switch=NATIVE)
    workload = Workload(numel=case.numel, density=case.density, file=str(file))
    runs = [simulate(network, workload, slots=SLOTS, seed=seed) for seed in range(repeat if loss else 1)]
    assert all(run.exact for run in runs)
    time = statistics.median(run.times[0] for run in runs)
    return Point("star", case.workers, case.density, loss, time, row["median_s"], row["retransmissions"])


def networks() -> list[Network]:
    """Return the networks that ns-3 simulates, too."""
    link = Link(rate=10**10, delay=2e-6, queue=0)
    return [*(star(ranks, link) for ranks in (8, 16, 32)), clos(64, 4, edge=link), clos(64, 4, 2, edge=link)]


def with_ns3(numel: int) -> Iterator[Point]:
    """Yield the points of ns-3."""
    for network in networks():
        for density in DENSITIES:
            workload = Workload(numel=numel, density=density)
            ours, theirs, resent = ns3.both(network, workload)
            yield Point(network.name, len(network.ranks), density, 0.0, ours, theirs, resent / len(network.ranks))


def table(points: Iterable[Point], other: str) -> list[Point]:
    """Print the points as a table in Markdown, each when it is there, and a summary."""
    print(f"| network | ranks | density | loss | {other} ms | simulated ms | difference | sent again |")
    print("|---|---|---|---|---|---|---|---|")
    done = []
    for point in points:
        done.append(point)
        print(
            f"| {point.network} | {point.ranks} | {point.density:g} | {point.loss:.0%} | {1e3 * point.other:.4g} | "
            f"{1e3 * point.simulated:.4g} | {point.error:+.1%} | {float(f'{point.resent:.3g}'):g} |",
            flush=True,
        )
    errors = [abs(point.error) for point in done]
    within = sum(error <= 0.05 for error in errors)
    print(f"\n{within} of {len(errors)} points are within 5 %; the largest difference is {max(errors):.1%}.\n")
    return done


def main() -> None:
    """Compare, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.measurements.simulated")
    parser.add_argument("--with", dest="others", default="links,ns3", help="links (root), ns3, or both")
    parser.add_argument("--numel", default="8MiB", help="size of a tensor on shaped links")
    parser.add_argument("--elements", type=int, default=1 << 18, help="elements of a tensor for ns-3")
    parser.add_argument("--repeat", type=int, default=7, help="measurements of each point on shaped links")
    parser.add_argument("--json", type=Path, help="file to write all points to")
    options = parser.parse_args()
    ways: dict[str, tuple[str, Callable[[], Iterator[Point]]]] = {
        "ns3": ("ns-3", lambda: with_ns3(options.elements)),
        "links": ("measured", lambda: shaped(options.numel, options.repeat)),
    }
    chosen = options.others.split(",")
    if not set(chosen) <= set(ways):
        parser.error(f"--with {options.others}: accepted are {', '.join(ways)}")
    found = {name: table(points(), other) for name, (other, points) in ways.items() if name in chosen}
    if options.json:
        options.json.write_text(json.dumps({name: list(map(asdict, points)) for name, points in found.items()}))


if __name__ == "__main__":
    main()
