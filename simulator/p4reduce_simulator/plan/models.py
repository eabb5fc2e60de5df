# SPDX-License-Identifier: Apache-2.0
"""Published numbers of parameters of some models. Most gradients are dense, unless they are sparsified.

Gradients of embeddings have zeros of their own: only rows that a batch has looked up are not zero. For these models,
OmniReduce's artifact has the sizes of all layers, and test data. Rows of eight of its batches were counted: how many
are not zero in a batch, and in the sum of all eight, from which the share follows that all workers have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p4reduce_simulator.workload import Workload

_TORCHVISION = "torchvision's documentation, num_params"
_DEVLIN = "Devlin et al., NAACL 2019"
_RADFORD = "Radford et al., 2019, table 2"
_ARTIFACT = "github.com/sands-lab/omnireduce-experiments, models"
_TOUVRON = "Touvron et al., arXiv 2302.13971, table 2"

_DENSE = Workload()


@dataclass(frozen=True)
class Model:
    """A model's number of parameters, the publication that has it, and the zeros of its gradient on one worker."""

    parameters: int
    source: str
    workload: Workload = _DENSE


MODELS: Mapping[str, Model] = {
    "resnet50": Model(25_557_032, _TORCHVISION),
    "resnet152": Model(60_192_808, _TORCHVISION),
    "vgg16": Model(138_357_544, _TORCHVISION),
    "vgg19": Model(143_667_240, _TORCHVISION),
    "bert-base": Model(110_000_000, _DEVLIN),
    "bert-large": Model(340_000_000, _DEVLIN),
    "gpt2-medium": Model(345_000_000, _RADFORD),
    "gpt2-xl": Model(1_542_000_000, _RADFORD),
    "deeplight": Model(  # 60,747,983 rows of Criteo's features; batches of 2,048
        607_959_381,
        f"{_ARTIFACT}/DeepLight",
        Workload(density=1.745e-4, pattern="rows", run=10, overlap=0.515, dense=479_551 / 607_959_381),
    ),
    "lstm": Model(  # two embeddings of 793,471 words; batches of 512 times 20 words, and 8,192 that all ranks sample
        426_465_919,
        f"{_ARTIFACT}/LSTM",
        Workload(density=8.69e-3, pattern="rows", run=256, overlap=0.795, dense=19_415_296 / 426_465_919),
    ),
    "llama-7b": Model(6_700_000_000, _TOUVRON),
}
