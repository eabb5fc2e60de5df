# SPDX-License-Identifier: Apache-2.0
"""What trainings came to: as rows, as tables, as JSON and as a plot. MB = 1e6 bytes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from p4reduce_bench.analyze.analysis import Analysis
from p4reduce_bench.training.trainings import HOOKS, Run, Training

VERSION = 1


@dataclass(frozen=True)
class Row:
    """One training. A step takes as long as its slowest rank."""

    model: str
    system: str
    hook: str
    target: str | None
    """None: no switch took part."""
    backend: str | None
    """The engine of the ranks, "c" or "python", where a switch took part."""
    workers: int
    link_gbps: float | None
    seed: int
    steps: int
    warm_up: int
    parameters: int
    steps_per_s: float
    """Of the steps after the warm-up."""
    samples_per_s: float
    final_loss: float | None
    """On held-out samples, after the last step. None where ranks do not train together (noop)."""
    tx_bytes: int | None
    """A step, on average, on the wire, of the rank that has most. None: not known, as Gloo's without a link."""
    retransmissions: int | None
    """As tx_bytes; known only where p4reduce counts its own packets, without a link."""
    losses: list[float]
    """Of each step, the mean over the ranks."""
    ends: list[float]
    """Seconds from the start of the first step to the end of each."""


def row(run: Run, figures: Mapping[int, Mapping[str, Any]], training: Training, target: str, link: int | None) -> Row:
    """What the ranks measured in a run, together."""
    ranks = list(figures.values())
    ends = [max(turn) for turn in zip(*(rank["ends"] for rank in ranks), strict=True)]
    losses = [fmean(turn) for turn in zip(*(rank["losses"] for rank in ranks), strict=True)]
    counted = training.steps - training.warm_up
    steps_per_s = counted / (ends[-1] - (ends[training.warm_up - 1] if training.warm_up else 0.0))
    traffic = {name: round(max(rank["traffic"][name] for rank in ranks)) for name in ranks[0]["traffic"]}
    together = HOOKS[run.system] != "noop_hook"
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
        final_loss=figures[0]["held_out_loss"] if together else None,
        tx_bytes=traffic.get("tx_bytes") if together else 0,
        retransmissions=traffic.get("retransmissions"),
        losses=losses,
        ends=ends,
    )


def table(rows: Sequence[Row]) -> Table:
    """A line for each model and system: means over the seeds."""
    made = Table(title="training", caption="MB: 1e6 bytes, on the wire, a worker and a step; loss: on held-out samples")
    for name in ("model", "system", "hook"):
        made.add_column(name)
    for name in ("workers", "seeds", "steps/s", "samples/s", "to gloo", "tx MB", "final loss", "to gloo %"):
        made.add_column(name, justify="right", no_wrap=True)
    for model in dict.fromkeys(one.model for one in rows):
        made.add_section()
        for system, some in _by_system(rows, model).items():
            base = _by_system(rows, model).get("gloo")
            speed, loss = _mean(some, lambda one: one.steps_per_s), _mean(some, lambda one: one.final_loss)
            sent = _mean(some, lambda one: one.tx_bytes)
            base_speed = _mean(base, lambda one: one.steps_per_s) if base else None
            base_loss = _mean(base, lambda one: one.final_loss) if base else None
            name = f"{system} ({some[0].target}, {some[0].backend})" if some[0].target else system
            made.add_row(
                model, name, some[0].hook, str(some[0].workers), str(len(some)), _number(speed),
                _number(_mean(some, lambda one: one.samples_per_s)),
                _number(speed / base_speed if speed and base_speed else None),
                _number(sent / 1e6 if sent is not None else None),
                "-" if loss is None else f"{loss:.4f}",
                f"{100 * (loss / base_loss - 1):+.2f}" if loss is not None and base_loss else "-",
            )  # fmt: skip
    return made


def sparsity_table(analyses: Mapping[str, Analysis]) -> Table:
    """How sparse the gradients of each model are, by element and by block."""
    made = Table(title="gradients", caption="densification, overlap, skew: see docs/pytorch.md")
    made.add_column("model")
    made.add_column("by")
    for name in ("elements", "density %", "of sum %", "overlap", "densification", "skew"):
        made.add_column(name, justify="right", no_wrap=True)
    for model, analysis in analyses.items():
        made.add_section()
        for one in analysis.rows:
            measures = one.measures
            made.add_row(
                model, "element" if one.block_size == 1 else f"blocks of {one.block_size}",
                str(sum(parameter.numel for parameter in analysis.parameters)), _number(100 * measures.density),
                _number(100 * measures.union), _number(measures.overlap), _number(measures.densification),
                _number(measures.skew),
            )  # fmt: skip
    return made


def _by_system(rows: Sequence[Row], model: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for one in rows:
        if one.model == model:
            found.setdefault(one.system, []).append(one)
    return found


def _mean(rows: Sequence[Row], value: Callable[[Row], float | None]) -> float | None:
    known = [found for one in rows if (found := value(one)) is not None]
    return fmean(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def write_json(path: Path, rows: Sequence[Row], analyses: Mapping[str, Analysis], command: Sequence[str]) -> None:
    """One object: version, command, machine, rows, and the gradients' measures by model and block size."""
    gradients: list[dict[str, Any]] = [
        {"model": model, "block_size": one.block_size, **asdict(one.measures)}
        for model, analysis in analyses.items()
        for one in analysis.rows
    ]
    made = {
        "version": VERSION,
        "command": list(command),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()[2]},
        "rows": [asdict(one) for one in rows],
        "gradients": gradients,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")


def plot(path: Path, rows: Sequence[Row]) -> None:
    """For each model the loss over steps, the loss over time, and the throughput. Losses are smoothed a little."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(one.model for one in rows))
    figure, axes = plt.subplots(len(models), 3, figsize=(15, 4 * len(models)), squeeze=False, layout="constrained")
    for (over_steps, over_time, speed), model in zip(axes, models, strict=True):
        by_system = _by_system(rows, model)
        for color, (system, some) in enumerate(by_system.items()):
            for place, one in enumerate(some if system != "noop" else []):
                losses, style = _smooth(one.losses), {"color": f"C{color}", "label": None if place else system}
                over_steps.plot(losses, **style)
                over_time.plot(one.ends, losses, **style)
        over_steps.set(title=f"{model}, {rows[0].workers} workers", xlabel="step", ylabel="training loss")
        over_time.set(xlabel="seconds", ylabel="training loss")
        speeds = [_mean(some, lambda one: one.samples_per_s) or 0.0 for some in by_system.values()]
        speed.bar(list(by_system), speeds, color=[f"C{color}" for color in range(len(by_system))])
        speed.set(ylabel="samples/s")
        over_steps.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _smooth(losses: Sequence[float], share: float = 0.05) -> list[float]:
    """Means of up to so large a share of the steps, each up to its own."""
    width = max(1, round(len(losses) * share))
    return [fmean(losses[max(0, step + 1 - width) : step + 1]) for step in range(len(losses))]
