# SPDX-License-Identifier: Apache-2.0
"""The trainings that are compared, and their ranks, which are started once for all trainings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from p4reduce_bench.allreduce.systems import Setup, start_switch
from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from p4reduce_bench.processes.switches import START_UP_S, rank_environment

MODELS = ("recommender", "ncf", "lstm", "bert", "resnet")
"""The models that are trained by default."""
REAL = ("resnet18", "vgg11", "gpt2")
"""Models of `p4reduce_bench.gradients.plan`, which need more packages."""

HOOKS = {
    "gloo": "allreduce",
    "p4reduce": "allreduce_hook",
    "p4reduce-topk": "block_topk_hook",
    "noop": "noop_hook",
    "p4reduce-int16": "allreduce_hook",
    "p4reduce-int8": "int8_hook",
    "p4reduce-element-topk": "element_topk_hook",
    "oktopk": "oktopk_hook",
    "gloo-bf16": "bf16_compress_hook",
    "gloo-fp16": "fp16_compress_hook",
}
"""The DDP hook of each system; "allreduce" is DDP's own, without a hook."""

QUICK = 4
"""The number of systems, from the first, that are trained by default."""

STEPS, LOSSES_STEPS = 50, 100
"""The default steps of a training, and the steps after which losses hardly fall any more."""

LOSSES_SEEDS = 3
"""The default number of seeds with --losses, which shows differences by chance."""

RECORDED = 2
"""Iterations whose gradients are recorded for the measures of sparsity."""


@dataclass(frozen=True)
class Run:
    """One training."""

    model: str
    system: str
    seed: int
    """The seed of the parameters and of the batches."""
    recorded: bool = False
    """Whether its gradients are recorded after the last step, in the folder of its model."""

    def __str__(self) -> str:
        return f"{self.model}, {self.system}, seed {self.seed}"


@dataclass(frozen=True)
class Training:
    """The settings of all trainings."""

    workers: int
    steps: int
    warm_up: int
    """The steps before traffic and throughput are counted."""
    ratio: float
    """The share that hooks send of the largest blocks or elements."""
    start_iteration: int
    """The first step in which hooks leave values out or round them: earlier steps send all."""
    evaluations: int
    """The number of evaluations of the loss on held-out samples, without the one before the first step."""
    folder: Path
    """The folder for recordings."""


@dataclass(frozen=True)
class Step:
    """An event: rank 0 has done a step."""

    run: Run
    step: int
    loss: float


@dataclass(frozen=True)
class Done:
    """An event: a run has ended, with these figures of each rank."""

    run: Run
    figures: dict[int, dict[str, Any]]


def systems(losses: bool) -> list[str]:
    """Return the systems that are trained by default, or with --losses, all systems that have a loss."""
    return [name for name in HOOKS if HOOKS[name] != "noop_hook"] if losses else list(HOOKS)[:QUICK]


def plan(models: Sequence[str], systems: Sequence[str], seeds: Sequence[int]) -> list[Run]:
    """Return all runs; the systems take turns. The first run of a model with a hook records its gradients."""
    runs = []
    for model in models:
        recording = next((system for system in systems if HOOKS[system] != "allreduce"), None)
        for seed in seeds:
            for system in systems:
                runs.append(Run(model, system, seed, recorded=seed == seeds[0] and system == recording))
    return runs


def evaluated_after(steps: int, evaluations: int) -> list[int]:
    """Return the steps after which the loss is evaluated: 0, and each time twice as many, up to the last.

    The distances grow, since loss curves fall fast and then slowly.
    """
    return sorted({0, *(max(1, steps >> halved) for halved in range(evaluations))})


def counted(system: str, link: object | None) -> str:
    """Return the origin of a run's bytes: the interface, p4reduce's packets, or the algorithm's payload."""
    if link is not None:
        return "interface"
    return "packets" if system.startswith("p4reduce") else "payload"


def train(runs: Sequence[Run], training: Training, setup: Setup) -> Iterator[Step | Done]:
    """Run the trainings one after the other. Raises ChildFailed if a process fails, or after a long silence."""
    with ChildProcesses() as processes:
        environment = setup.rendezvous()
        if any(run.system.startswith("p4reduce") for run in runs):
            environment["P4REDUCE_CONTROLLER"] = start_switch(processes, training.workers, setup)
        ranks = _start_ranks(processes, runs, training, setup, environment)
        yield from collect(runs, training.workers, processes.events(ranks, START_UP_S + setup.timeout))


def collect(runs: Sequence[Run], workers: int, events: Iterator[tuple[Child, dict[str, Any]]]) -> Iterator[Step | Done]:
    """Yield events from the ranks' reports, in the order of the runs. Raises ChildFailed.

    A rank's report may be read before that of another rank that is equally far.
    """
    figures: list[dict[int, dict[str, Any]]] = [{} for _ in runs]
    done = 0
    for _, event in events:
        if "error" in event:
            raise ChildFailed(f"{runs[done]}: {event['error']}")
        if "step" in event:  # of rank 0, which has reported the runs before
            yield Step(runs[sum(0 in reported for reported in figures)], event["step"], event["loss"])
            continue
        figures[event["run"]][event["rank"]] = event
        while done < len(runs) and len(figures[done]) == workers:
            yield Done(runs[done], figures[done])
            done += 1
    if done < len(runs):
        raise ChildFailed("the ranks ended early")


def _start_ranks(
    processes: ChildProcesses, runs: Sequence[Run], training: Training, setup: Setup, environment: dict[str, str]
) -> list[Child]:
    command = [
        sys.executable, "-m", "p4reduce_bench.training.rank", "--runs", json.dumps([asdict(run) for run in runs]),
        "--steps", str(training.steps), "--ratio", str(training.ratio),
        "--start-iteration", str(training.start_iteration), "--evaluations", str(training.evaluations),
        "--folder", str(training.folder), "--timeout", str(setup.timeout), "--slots", str(setup.slots_used),
    ]  # fmt: skip
    return [
        processes.start_command(f"rank {rank}", setup.on_host(rank, command),
                                {**environment, **rank_environment(rank, training.workers, transport="udp")})
        for rank in range(training.workers)
    ]  # fmt: skip
