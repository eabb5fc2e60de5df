# SPDX-License-Identifier: Apache-2.0
"""The results of trainings as rows, as tables and as JSON. MB = 1e6 bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.analyze.analysis import Analysis
from p4reduce_bench.outputs import number
from p4reduce_bench.training.trainings import HOOKS, Run, Training, counted, evaluated_after

VERSION = 2


@dataclass(frozen=True)
class Row:
    """The result of one training. A step takes as long as its slowest rank."""

    model: str
    system: str
    hook: str
    target: str | None
    """The target of the switch; None without a switch."""
    backend: str | None
    """The engine of the ranks, "c" or "python"; None without a switch."""
    workers: int
    link_gbps: float | None
    seed: int
    steps: int
    warm_up: int
    parameters: int
    steps_per_s: float
    """The rate of the steps after the warm-up."""
    samples_per_s: float
    final_loss: float | None
    """The loss on held-out samples after the last step. None if ranks do not train together (noop)."""
    tx_bytes: int
    """The average bytes of a step at the rank that sends most."""
    counted: str
    """The origin of these bytes: the "interface" or p4reduce's "packets", which count bytes on the wire; or the
    "payload" that Gloo's algorithm sends, to which TCP adds its headers."""
    retransmissions: int | None
    """The average retransmissions of a step; known only if p4reduce counts its own packets, without a link."""
    losses: list[float]
    """The loss of each step, as the mean over the ranks."""
    ends: list[float]
    """Seconds from the start of the first step to the end of each step, without evaluations."""
    sent: list[int]
    """Bytes from the start of the first step to the end of each step, at the rank that sends most."""
    evaluated: list[int]
    """The steps after which `held_out` was measured; the first is 0."""
    held_out: list[float]
    """Losses on held-out samples. Empty where ranks do not train together."""


def row(run: Run, figures: Mapping[int, Mapping[str, Any]], training: Training, target: str, link: int | None) -> Row:
    """Return the row of a run from its ranks' figures."""
    ranks = list(figures.values())
    ends = [max(turn) for turn in zip(*(rank["ends"] for rank in ranks), strict=True)]
    losses = [fmean(turn) for turn in zip(*(rank["losses"] for rank in ranks), strict=True)]
    sent = [max(turn) for turn in zip(*(rank["traffic"]["tx_bytes"] for rank in ranks), strict=True)]
    resent = [rank["traffic"]["retransmissions"] for rank in ranks if "retransmissions" in rank["traffic"]]
    together = HOOKS[run.system] != "noop_hook"
    steps_per_s = 1 / _a_step(ends, training.warm_up)
    return Row(
        model=run.model,
        system=run.system,
        hook=HOOKS[run.system],
        target=target if run.system.startswith("p4reduce") else None,
        backend=ranks[0]["backend"] if run.system.startswith("p4reduce") else None,
        workers=training.workers,
        link_gbps=link / 1e9 if link else None,
        seed=run.seed,
        steps=training.steps,
        warm_up=training.warm_up,
        parameters=ranks[0]["parameters"],
        steps_per_s=steps_per_s,
        samples_per_s=steps_per_s * training.workers * ranks[0]["batch"],
        final_loss=figures[0]["held_out"][-1] if together else None,
        tx_bytes=round(_a_step(sent, training.warm_up)),
        counted=counted(run.system, link),
        retransmissions=round(max(_a_step(each, training.warm_up) for each in resent)) if resent else None,
        losses=losses,
        ends=ends,
        sent=sent,
        evaluated=evaluated_after(training.steps, training.evaluations) if together else [],
        held_out=figures[0]["held_out"] if together else [],
    )


def _a_step(passed: Sequence[float], warm_up: int) -> float:
    """Return the average progress of a step, from the progress by the end of each step."""
    before = passed[warm_up - 1] if warm_up else 0
    return (passed[-1] - before) / (len(passed) - warm_up)


def table(rows: Sequence[Row]) -> Table:
    """Return a line for each model and system: means over the seeds."""
    made = outputs.table(
        "training", ("model", "system", "hook"), ("workers", "seeds", "steps/s", "samples/s", "to gloo", "tx MB"),
        "MB: 1e6 bytes, a worker and a step, on the wire; ≥: the payload alone, which is all that is known of Gloo"
        " without a link",
    )  # fmt: skip
    for model in dict.fromkeys(one.model for one in rows):
        made.add_section()
        systems = by_system(rows, model)
        base_speed = mean(systems.get("gloo", []), lambda one: one.steps_per_s)
        for system, some in systems.items():
            speed, sent = mean(some, lambda one: one.steps_per_s), mean(some, lambda one: one.tx_bytes / 1e6)
            name = f"{system} ({some[0].target}, {some[0].backend})" if some[0].target else system
            made.add_row(
                model, name, some[0].hook, str(some[0].workers), str(len(some)), number(speed),
                number(mean(some, lambda one: one.samples_per_s)),
                number(speed / base_speed if speed and base_speed else None),
                ("≥ " if some[0].counted == "payload" and sent else "") + number(sent),
            )  # fmt: skip
    return made


def sparsity_table(analyses: Mapping[str, Analysis]) -> Table:
    """Return the sparsity of each model's gradients, by element and by block."""
    made = outputs.table(
        "gradients", ("model", "by"), ("elements", "density %", "of sum %", "overlap", "densification", "skew"),
        "densification, overlap, skew: see docs/pytorch.md",
    )  # fmt: skip
    for model, analysis in analyses.items():
        made.add_section()
        for one in analysis.rows:
            measures = one.measures
            made.add_row(
                model, "element" if one.block_size == 1 else f"blocks of {one.block_size}",
                str(sum(parameter.numel for parameter in analysis.parameters)), number(100 * measures.density),
                number(100 * measures.union), number(measures.overlap), number(measures.densification),
                number(measures.skew),
            )  # fmt: skip
    return made


def by_system(rows: Sequence[Row], model: str) -> dict[str, list[Row]]:
    """Return the rows of a model, by system."""
    found: dict[str, list[Row]] = {}
    for one in rows:
        if one.model == model:
            found.setdefault(one.system, []).append(one)
    return found


def mean(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    """Return the mean over the rows with a value; None if none has one."""
    known = [found for one in rows if (found := value(one)) is not None]
    return fmean(known) if known else None


def write_json(path: Path, rows: Sequence[Row], analyses: Mapping[str, Analysis]) -> None:
    """Write the rows, and the gradients' measures by model and block size, with `outputs.write_json`."""
    gradients: list[dict[str, Any]] = [
        {"model": model, "block_size": one.block_size, **asdict(one.measures)}
        for model, analysis in analyses.items()
        for one in analysis.rows
    ]
    outputs.write_json(path, VERSION, {"rows": [asdict(one) for one in rows], "gradients": gradients})
