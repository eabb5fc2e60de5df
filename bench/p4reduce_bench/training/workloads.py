# SPDX-License-Identifier: Apache-2.0
"""Small models in the shape of OmniReduce's workloads (Fei et al., SIGCOMM 2021), and data that they can learn.

All data is synthetic. It is drawn from a hidden model with the structure of the real data, so that a falling loss means
something. Rows of tables are 64 or 128 floats wide, and other sizes are mostly multiples of 64, so that rows line up
with blocks in DDP's buckets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from p4reduce_bench.gradients.models import NeuralFiltering

Batch = tuple[Tensor, ...]

_EPS = 1e-4  # with Adagrad's 1e-10, a first step is the sign of a gradient, which the last digits of a sum decide
_HIDDEN_SEED = 7  # of the hidden models: the same in all runs


class Workload(ABC):
    """A model with its data and its optimizer."""

    batch: int
    """The number of samples of a rank and a step."""
    held_out: int
    """The number of samples for the loss on held-out samples."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model, drawn from torch's global generator; its call returns the mean loss of a batch."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the usual optimizer of such a model."""

    @abstractmethod
    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        """Return samples to train on."""

    def draw_held_out(self, samples: int, generator: torch.Generator) -> Batch:
        """Return samples to measure the loss on."""
        return self.draw(samples, generator)


def _hidden() -> torch.Generator:
    return torch.Generator().manual_seed(_HIDDEN_SEED)


class _Zipf:
    """A distribution of numbers below `count`: the probability of k is proportional to 1 / (k + 1)^exponent."""

    def __init__(self, count: int, exponent: float) -> None:
        weights = torch.arange(1, count + 1, dtype=torch.float64) ** -exponent
        self._sums = weights.cumsum(0) / weights.sum()
        self._last = count - 1

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        return torch.searchsorted(self._sums, drawn).clamp_(max=self._last)


class _ClickModel(nn.Module):
    """DeepLight (Deng et al., WSDM 2021): a field-weighted factorisation machine and a deep network."""

    offsets: Tensor

    def __init__(self, fields: int, values: int, width: int) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(fields) * values, persistent=False)
        self.table = nn.Embedding(fields * values, width)
        nn.init.normal_(self.table.weight, std=0.05)
        self.strengths = nn.Parameter(torch.ones(fields, fields) / fields)
        self.deep = nn.Sequential(
            nn.Linear(fields * width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1, bias=False)
        )

    def forward(self, ids: Tensor, clicks: Tensor) -> Tensor:
        rows = self.table(ids + self.offsets)
        products = rows @ rows.transpose(1, 2)
        logits = (products * self.strengths.triu(1)).sum((1, 2)) + self.deep(rows.flatten(1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, clicks)


class Recommender(Workload):
    """Click prediction: nearly all of the model is one table, and a batch touches few of its rows.

    Ids follow Zipf's law in each field. The log-odds of a click are a factorisation machine of hidden vectors.
    """

    batch = 128
    held_out = 8192
    _fields, _values, _width, _rank = 8, 16_384, 64, 4

    def __init__(self) -> None:
        hidden = _hidden()
        self._ids = _Zipf(self._values, 1.1)
        self._vectors = torch.randn(self._fields, self._values, self._rank, generator=hidden) * 0.5
        self._biases = torch.randn(self._fields, self._values, generator=hidden) * 0.7

    def model(self) -> nn.Module:
        return _ClickModel(self._fields, self._values, self._width)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.02, eps=_EPS, fused=True)

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        ids = self._ids.draw((samples, self._fields), generator)
        indices = (torch.arange(self._fields), ids)
        vectors = self._vectors[indices]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        odds = pairs + self._biases[indices].sum(1)
        return ids, torch.bernoulli(torch.sigmoid(odds), generator=generator)


class Ncf(Workload):
    """Collaborative filtering: for each item that a user chose, four random items stand for those not chosen.

    Users and offers follow Zipf's law. Among eight offers, a user chooses the one with the best hidden score.
    """

    batch = 5120
    held_out = 20_480
    _users, _items, _width, _rank, _offers, _negatives = 16_384, 8192, 64, 8, 8, 4

    def __init__(self) -> None:
        hidden = _hidden()
        self._user_ids, self._item_ids = _Zipf(self._users, 0.6), _Zipf(self._items, 0.9)
        self._tastes = torch.randn(self._users, self._rank, generator=hidden)
        self._features = torch.randn(self._items, self._rank, generator=hidden)

    def model(self) -> nn.Module:
        return NeuralFiltering(self._users, self._items, self._width)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        positives = samples // (1 + self._negatives)
        users = self._user_ids.draw((positives,), generator)
        offers = self._item_ids.draw((positives, self._offers), generator)
        scores = (self._features[offers] @ self._tastes[users][:, :, None]).squeeze(2)
        chosen = offers.gather(1, scores.argmax(1, keepdim=True)).squeeze(1)
        others = torch.randint(0, self._items, (positives * self._negatives,), generator=generator)
        labels = torch.cat([torch.ones(positives), torch.zeros(others.numel())])
        return users.repeat(1 + self._negatives), torch.cat([chosen, others]), labels


class _MarkovText:
    """A hidden Markov model of text: each state has words of its own, which follow Zipf's law."""

    def __init__(self, vocabulary: int, states: int) -> None:
        self._states = states
        self._next = torch.softmax(3 * torch.randn(states, states, generator=_hidden()), 1)
        self._ranks = _Zipf(vocabulary // states, 1.0)

    def draw(self, samples: int, length: int, generator: torch.Generator) -> Tensor:
        """Return texts: int64, shape (samples, length)."""
        states = [torch.randint(0, self._states, (samples,), generator=generator)]
        for _ in range(length - 1):
            states.append(torch.multinomial(self._next[states[-1]], 1, generator=generator).squeeze(1))
        return self._ranks.draw((samples, length), generator) * self._states + torch.stack(states, 1)


class _LanguageModel(nn.Module):
    """An LSTM with projection between two word tables, with sampled softmax (Jozefowicz et al., 2016)."""

    def __init__(self, vocabulary: int, width: int, states: int, samples: int) -> None:
        super().__init__()
        self.words, self.output = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        for table in (self.words, self.output):
            nn.init.normal_(table.weight, std=0.1)
        self.lstm = nn.LSTM(width, states, num_layers=2, proj_size=width, batch_first=True)
        self.samples = samples

    def forward(self, text: Tensor, samples: Tensor) -> Tensor:
        """Return the mean loss of predicting text[:, 1:] among the target and `samples`; if there are none, all words.

        The logarithm of a word's probability to be sampled is subtracted from its logit (Jean et al., ACL 2015).
        """
        states = self.lstm(self.words(text[:, :-1]))[0].flatten(0, 1)
        targets = text[:, 1:].flatten()
        if not samples.numel():
            return functional.cross_entropy(states @ self.output.weight.T, targets)
        count = targets.numel()
        candidates = torch.cat([targets, samples])
        rows = self.output(candidates)
        correction = self._log_inclusion(candidates)
        own = (states * rows[:count]).sum(1) - correction[:count]
        others = (states @ rows[count:].T - correction[count:]).masked_fill(samples == targets[:, None], -torch.inf)
        return functional.cross_entropy(torch.cat([own[:, None], others], 1), torch.zeros(count, dtype=torch.int64))

    def _log_inclusion(self, words: Tensor) -> Tensor:
        chances = torch.log1p(1 / (words + 1.0)) / math.log(self.output.num_embeddings + 1)
        return torch.log(-torch.expm1(self.samples * torch.log1p(-chances)))


class Lstm(Workload):
    """A language model of many words: its tables have gradients only in the rows of a batch's words and of samples."""

    batch = 16
    held_out = 64
    _vocabulary, _width, _states, _length, _samples = 32_768, 64, 128, 20, 1024

    def __init__(self) -> None:
        self._text = _MarkovText(self._vocabulary, 32)

    def model(self) -> nn.Module:
        return _LanguageModel(self._vocabulary, self._width, self._states, self._samples)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.02, eps=_EPS, fused=True)

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        uniform = torch.rand(self._samples, generator=generator, dtype=torch.float64)
        words = (torch.exp(uniform * math.log(self._vocabulary + 1)) - 1).long().clamp_(max=self._vocabulary - 1)
        return self._text.draw(samples, self._length + 1, generator), torch.unique(words)

    def draw_held_out(self, samples: int, generator: torch.Generator) -> Batch:
        return self._text.draw(samples, self._length + 1, generator), torch.empty(0, dtype=torch.int64)


class _Encoder(nn.Module):
    """BERT (Devlin et al., NAACL 2019), with the word table as output layer too."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(
            width, 2, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, text: Tensor, masked: Tensor) -> Tensor:
        """Return the mean loss of telling the words at `masked`, bool; the vocabulary's last word hides them."""
        shown = text.masked_fill(masked, self.words.num_embeddings - 1)
        states = self.layers(self.words(shown) + self.positions.weight)[masked]
        return functional.cross_entropy(states @ self.words.weight.T, text[masked])


class Bert(Workload):
    """A masked language model: every parameter has a gradient, so nothing is zero by itself."""

    batch = 8
    held_out = 256
    _vocabulary, _length, _width, _layers, _masked = 8192, 32, 128, 2, 0.15

    def __init__(self) -> None:
        self._text = _MarkovText(self._vocabulary, 32)

    def model(self) -> nn.Module:
        return _Encoder(self._vocabulary, self._length, self._width, self._layers)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        text = self._text.draw(samples, self._length, generator)
        masked = torch.rand(text.shape, generator=generator) < self._masked
        masked[0, 0] = True  # a mean needs at least one
        return text, masked


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(8, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(8, after),
        )  # fmt: skip
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.body(images) + self.shortcut(images))


class _ResidualNetwork(nn.Module):
    """A residual network (He et al., CVPR 2016) with group normalisation (Wu and He, ECCV 2018).

    Unlike batch normalisation, it has no statistics that ranks would share.
    """

    def __init__(self, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        blocks = [_ResidualBlock(before, after) for before, after in pairwise((widths[0], *widths))]
        self.layers = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.GroupNorm(8, widths[0]), nn.ReLU(), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes),
        )  # fmt: skip

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(images), classes)


class Resnet(Workload):
    """Image classification: each class is a smooth pattern, which is shifted in each image and covered with noise."""

    batch = 8
    held_out = 256
    _side, _classes, _widths = 16, 10, (64, 128, 256)

    def __init__(self) -> None:
        coarse = torch.randn(self._classes, 3, 4, 4, generator=_hidden())
        self._patterns = functional.interpolate(coarse, size=(self._side, self._side), mode="bicubic")

    def model(self) -> nn.Module:
        return _ResidualNetwork(self._widths, self._classes)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, fused=True)

    def draw(self, samples: int, generator: torch.Generator) -> Batch:
        classes = torch.randint(0, self._classes, (samples,), generator=generator)
        shifts = torch.randint(0, 4, (samples, 2), generator=generator).tolist()
        images = torch.stack(
            [self._patterns[one].roll(shift, (1, 2)) for one, shift in zip(classes.tolist(), shifts, strict=True)]
        )
        return images + torch.randn(images.shape, generator=generator), classes


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "recommender": Recommender, "ncf": Ncf, "lstm": Lstm, "bert": Bert, "resnet": Resnet,
}  # fmt: skip
