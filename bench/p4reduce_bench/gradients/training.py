# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training, with all ranks in turn in this process, and their gradients in files.

All ranks have the same parameters, so one module stands for all of them. Each rank's gradient is that of its own
samples, and the parameters follow the average, as with DDP. The running statistics of normalisation layers see all
ranks' samples, while with DDP each rank has its own; no gradient of a training depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from p4reduce.tensors.recordings import Facts, path_of, write
from p4reduce_bench.gradients.datasets import shard
from p4reduce_bench.gradients.models import Task
from p4reduce_bench.gradients.plan import Plan
from p4reduce_bench.gradients.sparsify import Sparsifier

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""The sizes in bytes from which a bucket takes no more parameters, as in DDP."""


@dataclass(frozen=True)
class Step:
    """A finished step, counted from 1, and its mean loss over the ranks."""

    number: int
    loss: float


def buckets(module: nn.Module) -> list[list[tuple[str, nn.Parameter]]]:
    """Return DDP's buckets of parameters, the last parameters first, since their gradients are ready first."""
    made: list[list[tuple[str, nn.Parameter]]] = [[]]
    size = 0
    for name, parameter in reversed([one for one in module.named_parameters() if one[1].requires_grad]):
        if size >= (FIRST_BUCKET if len(made) == 1 else BUCKET):
            made.append([])
            size = 0
        made[-1].append((name, parameter))
        size += parameter.numel() * parameter.element_size()
    return made


def train(task: Task, sparsifier: str, plan: Plan, folder: Path) -> Iterator[Step]:
    """Train, and write each rank's input of the allreduce in the steps to record: one file for a rank and step."""
    torch.manual_seed(plan.seed)
    task.module.train()
    optimizer = task.optimizer()
    parts = buckets(task.module)
    batch = plan.batch or task.batch
    own = [shard(task.samples, rank, plan.workers, batch * plan.steps, plan.seed) for rank in range(plan.workers)]
    ranks = [Sparsifier(sparsifier, plan.ratio) for _ in range(plan.workers)]
    for step in range(1, plan.steps + 1):
        sums = [torch.zeros(sum(parameter.numel() for _, parameter in part)) for part in parts]
        losses = []
        for rank, sparse in enumerate(ranks):
            task.module.zero_grad()
            loss = task.loss(own[rank][(step - 1) * batch : step * batch])
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            sent = [sparse.sent(index, _flat(part)) for index, part in enumerate(parts)]
            for total, one in zip(sums, sent, strict=True):
                total += one
            if step in plan.record_at:
                _record(folder, Facts(rank, plan.workers, step, [[name for name, _ in part] for part in parts]),
                        parts, sent)  # fmt: skip
        for part, total in zip(parts, sums, strict=True):
            _put(part, total / plan.workers)
        optimizer.step()
        yield Step(step, fmean(losses))


def _flat(part: Sequence[tuple[str, nn.Parameter]]) -> Tensor:
    """Return the gradients of a bucket in one tensor, shape (numel,); a missing gradient is zero."""
    return torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for _, one in part]).detach()


def _split(part: Sequence[tuple[str, nn.Parameter]], flat: Tensor) -> Sequence[Tensor]:
    return torch.split_with_sizes(flat, [parameter.numel() for _, parameter in part])


def _put(part: Sequence[tuple[str, nn.Parameter]], flat: Tensor) -> None:
    for (_, parameter), gradient in zip(part, _split(part, flat), strict=True):
        parameter.grad = gradient.view_as(parameter)


def _record(
    folder: Path, facts: Facts, parts: Sequence[Sequence[tuple[str, nn.Parameter]]], sent: Sequence[Tensor]
) -> None:
    gradients = {
        name: values.numpy()
        for part, flat in zip(parts, sent, strict=True)
        for (name, _), values in zip(part, _split(part, flat), strict=True)
    }
    write(path_of(folder, facts.iteration, facts.rank), facts, gradients)
