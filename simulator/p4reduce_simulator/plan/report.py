# SPDX-License-Identifier: Apache-2.0
"""Plans as tables, sentences and pictures."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.outputs import number
from p4reduce_simulator.peers.comparison import BY_ELEMENTS
from p4reduce_simulator.plan.planning import Estimate, Plan


def systems(plan: Plan, compute: float) -> Table:
    """Return a table of all systems' times; with `compute` seconds of a step for the rest, of steps as well."""
    table = outputs.table(
        f"{plan.gradients}: {plan.numel} elements, {plan.density:.3g} of them not zero, {plan.ranks} workers",
        ("system",),
        ("time ms", "GB/s", "p4reduce is faster by", *(("step ms", "step is faster by") if compute else ())),
        "time: of one allreduce of the whole gradient"
        + (f"; step: with {1e3 * compute:g} ms of computation, and no overlap" if compute else ""),
    )
    for name, estimate in {"p4reduce": plan.ours, **plan.others}.items():
        ratio = estimate.time / plan.ours.time
        row = [name, number(estimate.time, 1e3), number(4 * plan.numel / estimate.time / 1e9), f"{ratio:.2f}"]
        if compute:
            step = compute + estimate.time
            row += [number(step, 1e3), f"{step / (compute + plan.ours.time):.2f}"]
        table.add_row(*row)
    return table


def changes(plan: Plan) -> Table:
    """Return a table of p4reduce's times with each change."""
    table = outputs.table("p4reduce with a change", ("change", "relieves"), ("time ms", "faster by"))
    for change in plan.changes:
        table.add_row(change.name, change.relieves, number(change.estimate.time, 1e3), f"{plan.gain(change):.2f}")
    return table


def sentences(plan: Plan) -> list[str]:
    """Return what binds, what to change, and whether another system is faster."""
    said = [f"What binds: {plan.binds}."]
    if plan.density < 1:
        said.append(
            f"Blocks that are not zero: {plan.blocks:.1%} of a worker's, {plan.blocks_of_sum:.1%} of the sum's."
        )
    worthwhile = plan.worthwhile()
    if worthwhile:
        tried = ", ".join(f"{change.name} ({plan.gain(change):.2f} times as fast)" for change in worthwhile)
        said.append(f"What helps: {tried}.")
    else:
        said.append("No change that was tried makes it 5 % faster.")
    if BY_ELEMENTS in plan.others and plan.speed_up(BY_ELEMENTS) < 1:
        said.append(f"{BY_ELEMENTS} is faster here: use allreduce without `layout`, or with layout='elements'.")
    faster = [system for system in plan.others if plan.speed_up(system) < 1 and system != BY_ELEMENTS]
    if faster:
        said.append(f"Faster here, as published algorithms without processor time: {', '.join(faster)}.")
    said.append(_basis(plan.ours))
    return said


def _basis(estimate: Estimate) -> str:
    if len(estimate.samples) == 1:
        return "Simulated as a whole."
    sizes = " and ".join(str(numel) for numel, _ in estimate.samples)
    return f"Simulated with {sizes} elements, from which the time of all follows as a straight line."


def plot(path: Path, plan: Plan) -> None:
    """Draw the systems' times, and p4reduce's with each change."""
    with outputs.figure(path, 1, 2, (10, 4)) as (_, axes):
        first, second = axes[0]
        ours = {"p4reduce": plan.ours, **plan.others}
        first.barh(list(ours), [1e3 * estimate.time for estimate in ours.values()])
        first.set_title(f"{plan.gradients}, {plan.ranks} workers")
        tried = {"as planned": plan.ours, **{change.name: change.estimate for change in plan.changes}}
        second.barh(list(tried), [1e3 * estimate.time for estimate in tried.values()])
        second.set_title("p4reduce with a change")
        for axis in (first, second):
            axis.invert_yaxis()
            axis.set_xlabel("time of an allreduce, ms")
