# SPDX-License-Identifier: Apache-2.0
"""Runs the examples on some ranks, and checks that a switch has added up for them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.cluster.stack import Stack
from tests.support.scripts import load_script

EXAMPLES = Path(__file__).parents[2] / "examples"
LOSS = re.compile(r"rank (\d+) step (\d+) loss ([\d.]+)")
HOOK = re.compile(r"rank (\d+) switch: (\d+) sums in ([\d,]+) rounds")
BACKEND = re.compile(r"rank (\d+) switch: (.*); host's memory: 0 calls .* Gloo: \d+ calls of 0\.000 MB")
SUMS = re.compile(r"(?:all_reduce|reduce_scatter\w*) of float32: [\d,]+ calls of ([\d.,]+) MB")
LANES = 4
Losses = dict[tuple[int, int], float]
"""By rank and step."""


def environment(stack: Stack) -> dict[str, str]:
    """Return the ranks' environment. It keeps libraries from contacting model hubs and from reporting usage."""
    offline = {
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "ACCELERATE_USE_CPU": "true",
    }
    ours = {"P4REDUCE_CONTROLLER": stack.controller, "P4REDUCE_LOCAL": "off"}
    return {**os.environ, **offline, **ours, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def rounds_of(stack: Stack, at_least: int) -> Iterator[None]:
    """Check that the switch completes at least so many rounds in this context."""
    before = _rounds(stack)
    yield
    assert _rounds(stack) - before >= at_least


def _rounds(stack: Stack) -> int:
    return sum(int(switch["outcomes"]["completed"]) for switch in stack.status()["switches"])


def torchrun(*options: str, ranks: int = 2) -> list[str]:
    """Return the command that runs an example by torchrun. options: torchrun's, then the example and its arguments."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options]


def run(stack: Stack, command: list[str], *, more: Mapping[str, str] | None = None, limit: float = 240) -> str:
    """Run a command, which must succeed within so many seconds, and return its output."""
    environment_ = {**environment(stack), **(more or {})}
    done = subprocess.run(command, env=environment_, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def losses_of(said: str) -> Losses:
    """Return the losses in lines of the form "rank 0 step 3 loss 0.123"."""
    return {(int(rank), int(step)): float(loss) for rank, step, loss in LOSS.findall(said)}


def expected(ranks: int) -> Losses:
    """Return the losses of a model that one process trains with the batches of all ranks."""
    import torch

    example, losses = load_script(EXAMPLES / "model.py"), {}
    model = example.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(example.STEPS):
        each = [example.loss_of(model, example.batch(step, rank)) for rank in range(ranks)]
        losses.update({(rank, step): loss.item() for rank, loss in enumerate(each)})
        optimizer.zero_grad()
        (sum(each) / ranks).backward()
        optimizer.step()
    return losses


def rounds(ranks: int) -> int:
    """Return the least number of rounds in which a switch sums all gradients. Each word, and each class, is a block."""
    import torch

    example = load_script(EXAMPLES / "model.py")
    words = [torch.cat([example.batch(step, rank) for rank in range(ranks)]).unique() for step in range(example.STEPS)]
    return sum(len(each) + example.CLASSES for each in words) // LANES


def by_switch_alone(said: str) -> set[int]:
    """Return the ranks that report that the switch alone has carried their gradients.

    Nothing of theirs went through the host's memory, and Gloo carried less than a kilobyte.
    """
    return {int(rank) for rank, *_ in (*HOOK.findall(said), *BACKEND.findall(said))}


def all_has_crossed(said: str, ranks: int, hosts: int | None = None) -> None:
    """Check that each rank reports that the switch has carried its gradients, or its shards on one of several hosts."""
    example = load_script(EXAMPLES / "model.py")
    assert by_switch_alone(said) == set(range(ranks)), said
    share = 1 if hosts is None else hosts / ranks
    gradients = 4e-6 * example.STEPS * sum(each.numel() for each in example.Model().parameters()) * share
    for _, sums, each in HOOK.findall(said):
        assert int(sums) >= example.STEPS, said
        assert int(each.replace(",", "")) >= rounds(ranks) * share, said
    for _, what in BACKEND.findall(said):
        assert sum(float(each) for each in SUMS.findall(what)) == pytest.approx(gradients, abs=0.002), said
