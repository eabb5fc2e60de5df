# SPDX-License-Identifier: Apache-2.0
"""The published numbers of parameters of some models. Their gradients are dense, unless they are sparsified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TORCHVISION = "torchvision's documentation, num_params"
_DEVLIN = "Devlin et al., NAACL 2019"
_RADFORD = "Radford et al., 2019, table 2"
_TOUVRON = "Touvron et al., arXiv 2302.13971, table 2"


@dataclass(frozen=True)
class Model:
    """A model's number of parameters, and the publication that has it."""

    parameters: int
    source: str


MODELS: Mapping[str, Model] = {
    "resnet50": Model(25_557_032, _TORCHVISION),
    "resnet152": Model(60_192_808, _TORCHVISION),
    "vgg16": Model(138_357_544, _TORCHVISION),
    "vgg19": Model(143_667_240, _TORCHVISION),
    "bert-base": Model(110_000_000, _DEVLIN),
    "bert-large": Model(340_000_000, _DEVLIN),
    "gpt2-medium": Model(345_000_000, _RADFORD),
    "gpt2-xl": Model(1_542_000_000, _RADFORD),
    "llama-7b": Model(6_700_000_000, _TOUVRON),
}
