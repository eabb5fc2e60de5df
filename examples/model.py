# SPDX-License-Identifier: Apache-2.0
"""What all examples train: words into classes, by a rule that can be learnt. Every rank has batches of its own."""

from typing import Any

import torch

WORDS, CLASSES, BATCH, STEPS = 512, 8, 16, 10


class Model(torch.nn.Module):
    """Whole blocks of 64 values a parameter: what shares a block does not depend on how a framework lays them out."""

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
    """It follows from the step: who starts again there has the same."""
    return torch.randint(0, WORDS, (BATCH, 4), generator=torch.Generator().manual_seed(1000 * step + rank))


def tell(rank: int, step: int, loss: torch.Tensor) -> None:
    print(f"rank {rank} step {step} loss {loss.item():.9f}\n", end="", flush=True)


def tell_traffic(rank: int, of: Any) -> None:
    """What a communicator or a process group of the backend has carried, and who for it."""
    if hasattr(of, "traffic"):
        said = "; ".join(line.strip() for line in str(of.traffic()).splitlines())
    else:
        stats = of.stats()
        way = "host's memory" if stats.local else "switch"
        said = f"{way}: {stats.operations:,} sums in {stats.rounds:,} rounds, {stats.bytes_sent / 1e6:,.3f} MB sent"
    print(f"rank {rank} {said}\n", end="", flush=True)
