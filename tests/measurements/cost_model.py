# SPDX-License-Identifier: Apache-2.0
"""The time of an allreduce as a sum of a few terms, fitted over size, density, workers and slots.

Workers, native switch and loopback share this machine's processors, so costs are counted over all workers. Crowd is
the number of processes (workers and the switch) minus the number of processors, and at least 1: so many processes wait
for a processor, and then find its caches used by others. Trials showed that it is a factor of just two terms.

    time = operation · crowd + scan · bytes of all tensors · crowd + packet · packets + byte · bytes of values
         + round · rounds.

- packets: those that all workers send, each with the one that comes back.
- bytes of values: sent and received, of all workers.
- rounds: those of one slot. They cannot overlap, so this term is latency.

The fit is least squares on relative errors, so that short times count as much as long ones. A term with a negative
cost is left out, the most negative first. Errors are relative, and also given for cases that were left out of the fit
(five folds).
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_LANES
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid
from p4reduce_bench.allreduce.inputs import block_masks
from p4reduce_bench.allreduce.limit import AGGREGATION_HEADER, AROUND_PAYLOAD, traffic
from p4reduce_bench.allreduce.systems import Failed, Setup, measure

VERSION = 1
TERMS = {
    "operation": "s, times crowd",
    "scan": "s a byte of tensors, times crowd",
    "packet": "s a packet sent, with its answer",
    "byte": "s a byte of values, sent or received",
    "round": "s a round of a slot",
}
FOLDS = 5
FLOAT32 = 4

Quantities = dict[str, float]
"""The amount of each term in a case."""


@dataclass(frozen=True)
class Point:
    """A case, the slots of its job, and seconds."""

    case: grid.Case
    slots: int
    seconds: float


def quantities(case: grid.Case, slots: int, processors: int) -> Quantities:
    """Return what the protocol must do for a case without loss, on so many processors."""
    crowd = max(1, case.workers + 1 - processors)
    blocks = block_masks(case)
    made = traffic(blocks, slots)
    header = AROUND_PAYLOAD + AGGREGATION_HEADER + 4 * DEFAULT_LANES
    used = max(1, min(slots, -(-blocks.shape[1] // DEFAULT_LANES)))
    return {
        "operation": float(crowd),
        "scan": float(crowd * case.workers * case.numel * FLOAT32),
        "packet": float(case.workers * made.rounds),
        "byte": float(case.workers * (made.sent + made.received - 2 * made.rounds * header)),
        "round": made.rounds / used,
    }


@dataclass(frozen=True)
class Model:
    """The seconds of each term, and how well they explain the times that they were fitted to."""

    costs: dict[str, float]
    r_squared: float
    median_error: float
    unseen_median_error: float
    """The median error of cases that were left out of the fit."""

    def seconds(self, amounts: Quantities) -> float:
        """Return the modelled time of a case."""
        return sum(cost * amounts[term] for term, cost in self.costs.items())


def fit(amounts: Sequence[Quantities], seconds: Sequence[float]) -> Model:
    """Return the model of these cases. Raises ValueError where they are fewer than the terms."""
    if len(amounts) < len(TERMS) or len(amounts) != len(seconds):
        raise ValueError(f"{len(amounts)} cases and {len(seconds)} times: {len(TERMS)} or more are needed, of each")
    matrix = np.array([[case[term] for term in TERMS] for case in amounts])
    times = np.array(seconds)
    costs = _solve(matrix, times)
    modelled = matrix @ costs
    unseen = np.empty_like(times)
    for fold in range(FOLDS):
        held_out = np.arange(times.size) % FOLDS == fold
        unseen[held_out] = matrix[held_out] @ _solve(matrix[~held_out], times[~held_out])
    spread = np.sum((times - times.mean()) ** 2)
    return Model(
        costs=dict(zip(TERMS, costs.tolist(), strict=True)),
        r_squared=float(1 - np.sum((times - modelled) ** 2) / spread) if spread else 1.0,
        median_error=float(np.median(np.abs(modelled / times - 1))),
        unseen_median_error=float(np.median(np.abs(unseen / times - 1))),
    )


def _solve(matrix: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return costs that are not negative; columns are scaled, since their units differ by many powers of ten."""
    relative = matrix / times[:, None]
    scales = np.maximum(np.abs(relative).max(axis=0), np.finfo(float).tiny)
    kept = list(range(matrix.shape[1]))
    costs = np.zeros(matrix.shape[1])
    while kept:
        found = np.linalg.lstsq(relative[:, kept] / scales[kept], np.ones(len(times)), rcond=None)[0]
        if found.min() >= 0:
            costs[kept] = found / scales[kept]
            break
        del kept[int(found.argmin())]
    return costs


def measured(
    cases: Sequence[grid.Case], slots: Sequence[int], repeat: int, timeout: float, progress: Progress
) -> list[Point]:
    """Measure every case with every number of slots. Raises P4ReduceError if one fails or a sum is wrong."""
    points = []
    bar = progress.add_task("measuring", total=len(cases) * len(slots))
    for workers, count in product(sorted({case.workers for case in cases}), slots):
        setup = Setup(target="native", slots=count, threads=1, repeat=repeat, warm_up=1, timeout=timeout, links=None)
        some = [case for case in cases if case.workers == workers]
        progress.update(bar, description=f"{workers} workers, {count} slots")
        for case, figures in measure("p4reduce", some, setup):
            if isinstance(figures, Failed):
                raise P4ReduceError(f"{case}: {figures.reason}")
            if any(rank["wrong"] for rank in figures.values()):
                raise P4ReduceError(f"{case}: sums are wrong")
            turns = zip(*(rank["seconds"] for rank in figures.values()), strict=True)
            points.append(Point(case, count, statistics.median(max(turn) for turn in turns)))
            progress.update(bar, advance=1)
    return points


def plot(path: Path, points: Sequence[Point], modelled: Sequence[float]) -> None:
    """Draw measured over modelled times, and both over density for the largest tensors and most slots."""
    most_numel, most_slots = max(point.case.numel for point in points), max(point.slots for point in points)
    with outputs.figure(path, 1, 2, (11, 4.5)) as (_, axes):
        left, right = axes[0]
        for colour, workers in enumerate(sorted({point.case.workers for point in points})):
            here = [pair for pair in zip(points, modelled, strict=True) if pair[0].case.workers == workers]
            style = {"color": f"C{colour}", "label": f"{workers} workers"}
            left.plot([time * 1e3 for _, time in here], [point.seconds * 1e3 for point, _ in here], "o", markersize=4,
                      **style)  # fmt: skip
            line = sorted((point.case.density, point.seconds * 1e3, time * 1e3) for point, time in here
                          if point.case.numel == most_numel and point.slots == most_slots)  # fmt: skip
            density, seconds, time = zip(*line, strict=True)
            right.plot(density, seconds, "o", markersize=5, **style)
            right.plot(density, time, "-", linewidth=1, color=f"C{colour}")
        ends = [min(modelled) * 1e3, max(modelled) * 1e3]
        left.plot(ends, ends, "k--", linewidth=1)
        left.set(xlabel="model, ms", ylabel="measured, ms", xscale="log", yscale="log", title="all cases")
        title = f"{most_numel * FLOAT32 >> 20} MiB, {most_slots} slots: line, model"
        right.set(xlabel="density", ylabel="ms", title=title)
        left.legend()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.measurements.cost_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", default="1MiB,4MiB,16MiB", help="sizes of the tensors")
    parser.add_argument("--density", default="1,0.3,0.1,0.03,0", help="shares of blocks that are non-zero")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--slots", default="16,64,256")
    parser.add_argument("--overlap", default="random", choices=grid.OVERLAPS)
    parser.add_argument("--repeat", type=int, default=5, help="allreduces of each case; their median is used")
    parser.add_argument("--timeout", type=float, default=60.0, help="time limit for one allreduce, in seconds")
    parser.add_argument("--json", type=Path, help="file to write all figures to, as JSON")
    parser.add_argument("--plot", type=Path, help="file to write a plot to")
    options = parser.parse_args()
    console = Console()
    try:
        cases = [
            case
            for size in options.sizes.split(",")
            for case in grid.grid(
                workers=grid.listed("--workers", options.workers, int, "numbers"),
                numels=[grid.elements(size, "float32")],
                dtype="float32",
                densities=grid.listed("--density", options.density, grid.within(0, 1), "shares from 0 to 1"),
                overlaps=[options.overlap],
                sparsities=["block"],
            )
        ]
        with Progress(console=console) as progress:
            slots = grid.listed("--slots", options.slots, int, "numbers")
            points = measured(cases, slots, options.repeat, options.timeout, progress)
    except P4ReduceError as error:
        raise SystemExit(f"error: {error}") from None
    processors = len(os.sched_getaffinity(0))
    amounts = [quantities(point.case, point.slots, processors) for point in points]
    model = fit(amounts, [point.seconds for point in points])
    modelled = [model.seconds(each) for each in amounts]

    table = outputs.table(f"{len(points)} cases", ["term"], ["cost", "unit"])
    for term, cost in model.costs.items():
        table.add_row(term, f"{cost:.3g}", TERMS[term])
    show_table(table, console)
    console.print(f"R² {model.r_squared:.3f}, median error {model.median_error:.1%}, "
                  f"of unseen cases {model.unseen_median_error:.1%}")  # fmt: skip
    if options.json:
        rows = [
            {**asdict(point.case), "slots": point.slots, "measured_s": point.seconds, "model_s": time, **each}
            for point, time, each in zip(points, modelled, amounts, strict=True)
        ]
        outputs.write_json(options.json, VERSION, {"units": TERMS, **asdict(model), "rows": rows})
    if options.plot:
        plot(options.plot, points, modelled)


if __name__ == "__main__":
    main()
