# SPDX-License-Identifier: Apache-2.0
"""The architectures by name: which there are, and what each is trained to do. Parameters are drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from p4reduce.errors import P4ReduceError
from p4reduce_bench.gradients.packages import why_not

SIZES = ("tiny", "base")
"""What trains on two processor cores in seconds a step or less; and the size that the architecture was published in."""


class Task(Protocol):
    """A module with its data."""

    module: nn.Module
    samples: int
    """How many there are to train on."""
    batch: int
    """Samples of a rank and a step, where nothing else is asked for."""

    def loss(self, chosen: Tensor) -> Tensor:
        """Mean loss of the samples with these numbers: float32, 0-d."""

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the usual one for such a model."""


@dataclass(frozen=True)
class Model:
    """An entry of the catalogue."""

    packages: tuple[str, ...]
    """That it needs, of the extra `gradients`."""
    make: Callable[[str], Task]
    """Given a size of SIZES; draws from torch's global generator."""


def _vision(name: str) -> Model:
    def make(size: str) -> Any:
        from p4reduce_bench.gradients.vision import Classification

        return Classification(name, size)

    return Model(("torchvision", "sklearn"), make)


def _language(name: str) -> Model:
    def make(size: str) -> Any:
        from p4reduce_bench.gradients import language

        return language.TASKS[name](size)

    return Model(("transformers",), make)


def _recommender(size: str) -> Any:
    from p4reduce_bench.gradients.recommender import Recommender

    return Recommender(size)


MODELS = {
    **{name: _vision(name) for name in ("resnet18", "resnet50", "vgg11", "vgg16")},
    **{name: _language(name) for name in ("bert", "bert-mlm", "gpt2")},
    "recommender": Model((), _recommender),
}


def missing(name: str) -> str | None:
    """What is not installed of what a model needs; None when it can be trained."""
    return next((reason for needed in MODELS[name].packages if (reason := why_not(needed))), None)


def make(name: str, size: str, seed: int) -> Task:
    """Return the model with parameters drawn from `seed`. Raises P4ReduceError where a package is missing."""
    reason = missing(name)
    if reason:
        raise P4ReduceError(f"--models {name}: {reason}")
    torch.manual_seed(seed)
    return MODELS[name].make(size)
