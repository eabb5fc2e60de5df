# SPDX-License-Identifier: Apache-2.0
"""The architectures, each with its data. Parameters are drawn at random.

- torchvision's residual networks (He et al., CVPR 2016) and VGG (Simonyan and Zisserman, ICLR 2015) tell digits.
- transformers' BERT (Devlin et al., NAACL 2019) and GPT-2 (Radford et al., 2019) read the source text of Python. The
  word table of `bert` has a gradient only in the rows of a batch's words. In `bert-mlm` and `gpt2` the same table is
  also the output layer, whose softmax over all words gives every row a gradient.
- A recommender of two tables (NeuMF: He et al., WWW 2017) learns which words stand near each other. A word stands for a
  user, and a word near it for an item that the user chose. These are real co-occurrences with a real skew, in which few
  words make up nearly all pairs, but no record of people's choices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from p4reduce.errors import P4ReduceError
from p4reduce_bench.gradients.datasets import MASK, digits, documents, text
from p4reduce_bench.gradients.packages import package
from p4reduce_bench.gradients.plan import missing

_CLASSES = 10  # of digits
_SIDE = {("resnet", "tiny"): 64, ("resnet", "base"): 128, ("vgg", "tiny"): 32, ("vgg", "base"): 128}
_NARROW = 512

_TINY_WORDS = 8192
_LENGTH = {"tiny": 64, "base": 128}
_HIDDEN_SHARE = 0.15
_IGNORED = -100  # transformers leaves such labels out of the loss
_TINY_BERT = {"vocab_size": _TINY_WORDS, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
              "intermediate_size": 1024, "max_position_embeddings": 128}  # fmt: skip
"""BERT-mini with 8,192 words. The default of transformers is BERT-base, 110 million parameters."""
_TINY_GPT2 = {"vocab_size": _TINY_WORDS, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128}
"""4 layers of width 256. The default of transformers is GPT-2's smallest, 124 million parameters."""

_WORDS = {"tiny": 8192, "base": 24_576}
_WIDTH = {"tiny": 64, "base": 128}
_REACH = 4  # words within which a pair counts as found
_NEGATIVES = 4  # pairs drawn for each pair found
_FLATTENED = 0.75  # word2vec's exponent for the drawing of negatives (Mikolov et al., NIPS 2013)


class Task:
    """A module with its data."""

    module: nn.Module
    samples: int
    """The number of samples to train on."""
    batch: int
    """The default number of samples of a rank and a step."""

    def loss(self, chosen: Tensor) -> Tensor:
        """Return the mean loss of the samples with these numbers: float32, 0-d."""
        raise NotImplementedError

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the usual optimizer of such a model."""
        raise NotImplementedError


class Digits(Task):
    """Tells which digit an image shows.

    base: the architecture as published, on images of 128 by 128. tiny: on images so small that the last convolutions of
    3 by 3 still see 2 by 2 pixels or more; a single pixel would meet only the kernel's centre. VGG's three wide layers,
    nine tenths of all its parameters, are reduced to 512 units after one average of the image, as is usual for such
    images.
    """

    batch = 16

    def __init__(self, architecture: str, size: str) -> None:
        family = architecture.rstrip("0123456789")
        self._images, self._labels = digits(_SIDE[family, size])
        self.samples = self._labels.numel()
        self.module = getattr(package("torchvision").models, architecture)(num_classes=_CLASSES)
        if family == "vgg" and size == "tiny":
            self.module.avgpool = nn.AdaptiveAvgPool2d(1)
            self.module.classifier = nn.Sequential(
                nn.Linear(_NARROW, _NARROW), nn.ReLU(), nn.Dropout(), nn.Linear(_NARROW, _NARROW), nn.ReLU(),
                nn.Dropout(), nn.Linear(_NARROW, _CLASSES),
            )  # fmt: skip

    def loss(self, chosen: Tensor) -> Tensor:
        return functional.cross_entropy(self.module(self._images[chosen]), self._labels[chosen])

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)


class Language(Task):
    """A transformer on windows of the text that do not overlap.

    bert tells which file a window is from, as in fine-tuning. bert-mlm tells 15 % of the words, which are hidden. gpt2
    tells each next word.
    """

    batch = 4

    def __init__(self, name: str, size: str) -> None:
        library, tiny = package("transformers"), size == "tiny"
        if name == "gpt2":
            config = library.GPT2Config(bos_token_id=None, eos_token_id=None, **(_TINY_GPT2 if tiny else {}))
            self.module = library.GPT2LMHeadModel(config)
        else:
            labels = {"num_labels": documents()} if name == "bert" else {}
            config = library.BertConfig(**(_TINY_BERT if tiny else {}), **labels)
            made = library.BertForSequenceClassification if name == "bert" else library.BertForMaskedLM
            self.module = made(config)
        self._name, self._length = name, _LENGTH[size]
        self._text = text(config.vocab_size)
        self.samples = self._text.words.numel() // self._length

    def loss(self, chosen: Tensor) -> Tensor:
        windows = self._text.words[chosen[:, None] * self._length + torch.arange(self._length)]
        labels = windows
        if self._name == "bert":
            labels = self._text.documents[chosen * self._length]
        elif self._name == "bert-mlm":
            hidden = torch.rand(windows.shape) < _HIDDEN_SHARE
            hidden[0, 0] = True  # a mean needs at least one
            windows, labels = windows.masked_fill(hidden, MASK), windows.masked_fill(~hidden, _IGNORED)
        made: Tensor = self.module(input_ids=windows, labels=labels).loss
        return made

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.module.parameters(), lr=1e-4)


class NeuralFiltering(nn.Module):
    """NeuMF (He et al., WWW 2017): generalised matrix factorisation and a multi-layer perceptron."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, 2 * width), nn.Embedding(items, 2 * width)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.05)
        self.deep = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.output = nn.Linear(2 * width, 1, bias=False)

    def forward(self, users: Tensor, items: Tensor, labels: Tensor) -> Tensor:
        (user, deep_user), (item, deep_item) = self.users(users).chunk(2, 1), self.items(items).chunk(2, 1)
        joined = torch.cat([user * item, self.deep(torch.cat([deep_user, deep_item], 1))], 1)
        return functional.binary_cross_entropy_with_logits(self.output(joined).squeeze(1), labels)


class Recommender(Task):
    """Tells pairs of words that were found, within 4 words of each other, from pairs that were drawn, 4 for each."""

    batch = 256

    def __init__(self, size: str) -> None:
        self._text = text(_WORDS[size])
        counts = torch.bincount(self._text.words, minlength=_WORDS[size]).double()
        self._chances = counts.pow(_FLATTENED).cumsum(0)
        self.samples = self._text.words.numel() - _REACH
        self.module = NeuralFiltering(_WORDS[size], _WORDS[size], _WIDTH[size])

    def loss(self, chosen: Tensor) -> Tensor:
        users, found = self._text.words[chosen], self._text.words[chosen + 1 + chosen % _REACH]
        drawn = torch.searchsorted(self._chances, torch.rand(_NEGATIVES * chosen.numel()).double() * self._chances[-1])
        labels = torch.cat([torch.ones(chosen.numel()), torch.zeros(drawn.numel())])
        made: Tensor = self.module(users.repeat(1 + _NEGATIVES), torch.cat([found, drawn]), labels)
        return made

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.module.parameters(), lr=0.02, eps=1e-4)


MAKERS: dict[str, Callable[[str], Task]] = {
    **{name: partial(Digits, name) for name in ("resnet18", "resnet50", "vgg11", "vgg16")},
    **{name: partial(Language, name) for name in ("bert", "bert-mlm", "gpt2")},
    "recommender": Recommender,
}
"""Each makes a model of a size; draws from torch's global generator."""


def make(name: str, size: str, seed: int) -> Task:
    """Return the model with parameters drawn from `seed`. Raises P4ReduceError if a package is missing."""
    if reason := missing(name):
        raise P4ReduceError(f"--models {name}: {reason}")
    torch.manual_seed(seed)
    return MAKERS[name](size)
