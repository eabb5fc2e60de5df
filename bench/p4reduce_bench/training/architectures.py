# SPDX-License-Identifier: Apache-2.0
"""The real architectures of `p4reduce bench gradients` as workloads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from p4reduce_bench.gradients.models import MAKERS, Task
from p4reduce_bench.training.workloads import Batch, Workload

_HELD_OUT = 256
_TRAINED_ON = 0.9  # the share of samples to train on; the loss is measured on some of the rest


class Architecture(Workload):
    """One of `gradients.models`, tiny. A batch consists of the numbers of samples."""

    def __init__(self, name: str) -> None:
        self._make: Callable[[str], Task] = MAKERS[name]
        with torch.random.fork_rng():
            task = self._make("tiny")
        self.batch = task.batch
        self._first_held_out = int(_TRAINED_ON * task.samples)
        self.held_out = min(_HELD_OUT, task.samples - self._first_held_out)

    def model(self) -> nn.Module:
        return _Loss(self._make("tiny"))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        assert isinstance(model, _Loss)
        return model.task.optimizer()

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        return (torch.randint(self._first_held_out, (samples,), generator=generator),)

    def draw_held_out(self, samples: int, generator: torch.Generator) -> Batch:  # noqa: ARG002 # always the same
        return (torch.arange(self._first_held_out, self._first_held_out + samples),)


class _Loss(nn.Module):
    """The mean loss of the samples with these numbers. Without gradients, the model is in evaluation mode."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.module = task.module

    def forward(self, chosen: Tensor) -> Tensor:
        measured = not torch.is_grad_enabled()
        self.module.train(not measured)
        with torch.random.fork_rng(enabled=measured):
            if measured:
                torch.manual_seed(0)  # for draws in addition to the samples
            return self.task.loss(chosen)
