# SPDX-License-Identifier: Apache-2.0
"""A recommender of two tables (NeuMF: He et al., WWW 2017) on pairs of words that stand near each other.

A word stands for a user, a word near it for an item that the user chose: real co-occurrences with a real skew, in which
few words are nearly all of the pairs. It is no record of people's choices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from p4reduce_bench.gradients.datasets import text

_WORDS = {"tiny": 8192, "base": 24_576}
_WIDTH = {"tiny": 64, "base": 128}
_REACH = 4
_NEGATIVES = 4
_FLATTENED = 0.75  # word2vec's exponent for what is drawn as not chosen (Mikolov et al., NIPS 2013)


class _Factors(nn.Module):
    """Generalised matrix factorisation beside a perceptron."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(words, 2 * width), nn.Embedding(words, 2 * width)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.05)
        self.deep = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.output = nn.Linear(2 * width, 1, bias=False)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Logits: float32, shape (pairs,)."""
        (user, deep_user), (item, deep_item) = self.users(users).chunk(2, 1), self.items(items).chunk(2, 1)
        joined = torch.cat([user * item, self.deep(torch.cat([deep_user, deep_item], 1))], 1)
        logits: Tensor = self.output(joined).squeeze(1)
        return logits


class Recommender:
    """Tells pairs that were found, within 4 words, from pairs that were drawn, 4 for each."""

    batch = 256

    def __init__(self, size: str) -> None:
        self._text = text(_WORDS[size])
        counts = torch.bincount(self._text.words, minlength=_WORDS[size]).double()
        self._chances = counts.pow(_FLATTENED).cumsum(0)
        self.samples = self._text.words.numel() - _REACH
        self.module = _Factors(_WORDS[size], _WIDTH[size])

    def loss(self, chosen: Tensor) -> Tensor:
        users, found = self._text.words[chosen], self._text.words[chosen + 1 + chosen % _REACH]
        drawn = torch.searchsorted(self._chances, torch.rand(_NEGATIVES * chosen.numel()).double() * self._chances[-1])
        labels = torch.cat([torch.ones(chosen.numel()), torch.zeros(drawn.numel())])
        logits = self.module(users.repeat(1 + _NEGATIVES), torch.cat([found, drawn]))
        return functional.binary_cross_entropy_with_logits(logits, labels)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.module.parameters(), lr=0.02, eps=1e-4)
