# SPDX-License-Identifier: Apache-2.0
"""The models and sparsifiers to choose from, and the settings of trainings. PyTorch is imported by those who train."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce_bench.gradients.packages import why_not

SIZES = ("tiny", "base")
"""The size that trains on two processor cores in seconds a step or less, and the size that was published."""

MODELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("resnet18", "resnet50", "vgg11", "vgg16"), ("torchvision", "sklearn")),
    **dict.fromkeys(("bert", "bert-mlm", "gpt2"), ("transformers",)),
    "recommender": (),
}
"""The packages of the extra `gradients` that each model needs."""

SPARSIFIERS = {"none": 0, "element": 1, "block": DEFAULT_BLOCK_SIZE}
"""The number of elements that are chosen together; 0: nothing is left out."""


@dataclass(frozen=True)
class Plan:
    """The settings of all trainings."""

    workers: int
    steps: int
    record_at: Collection[int]
    """The steps to record, counted from 1."""
    ratio: float
    batch: int
    """Samples of a rank and a step; 0: the model's default."""
    seed: int


def missing(name: str) -> str | None:
    """Return which package of a model is not installed; None if it can be trained."""
    return next((reason for needed in MODELS[name] if (reason := why_not(needed))), None)
