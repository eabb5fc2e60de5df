# SPDX-License-Identifier: Apache-2.0
"""The model and the data that all examples share.

The model sorts lists of words into classes, by a rule that it can learn. Every rank trains on its own batches.
"""

from typing import Any

import torch

WORDS, CLASSES, BATCH, STEPS = 512, 8, 16, 10


class Model(torch.nn.Module):
    """A small text classifier, in which every parameter fills whole blocks of 64 values.

    Therefore no block contains values of two parameters, however a framework lays them out.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same weights at all ranks
        self.words = torch.nn.EmbeddingBag(WORDS, 64)
        self.out = torch.nn.Linear(64, CLASSES, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(words))


def loss_of(model: torch.nn.Module, words: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(words), words[:, 0] % CLASSES)


def batch(step: int, rank: int) -> torch.Tensor:
    """Return the batch of a step and a rank. A rank that restarts at this step gets the same batch again."""
    return torch.randint(0, WORDS, (BATCH, 4), generator=torch.Generator().manual_seed(1000 * step + rank))


def print_loss(rank: int, step: int, loss: torch.Tensor) -> None:
    print(f"rank {rank} step {step} loss {loss.item():.9f}\n", end="", flush=True)


def print_traffic(rank: int, source: Any) -> None:
    """Print how much a communicator or a process group has transferred, and what did the sums: a switch or memory."""
    if hasattr(source, "traffic"):
        text = "; ".join(line.strip() for line in str(source.traffic()).splitlines())
    else:
        stats = source.stats()
        path = "host's memory" if stats.local else "switch"
        text = f"{path}: {stats.operations:,} sums in {stats.rounds:,} rounds, {stats.bytes_sent / 1e6:,.3f} MB sent"
    print(f"rank {rank} {text}\n", end="", flush=True)
