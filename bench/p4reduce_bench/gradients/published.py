# SPDX-License-Identifier: Apache-2.0
"""What a paper says of the same kind of gradients, to be read beside what is measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A figure with its source."""

    model: str
    task: str
    zero: float
    """Share of a gradient's elements that are zero."""
    source: str


_OMNIREDUCE = "OmniReduce (Fei et al., SIGCOMM 2021), table 1"

FIGURES = (
    Published("DeepLight", "clicks, Criteo", 0.9973, _OMNIREDUCE),
    Published("LSTM", "language model, GBW", 0.9450, _OMNIREDUCE),
    Published("BERT", "question answering, SQuAD", 0.0931, _OMNIREDUCE),
    Published("VGG19", "ImageNet", 0.3200, _OMNIREDUCE),
    Published("ResNet152", "ImageNet", 0.2160, _OMNIREDUCE),
)
