# SPDX-License-Identifier: Apache-2.0
"""Data from installed packages, so that nothing is downloaded: handwritten digits, and the source text of Python.

The text is the standard library's top-level modules and the language reference in `pydoc_data`: some 5 MB of English
and Python, with a skewed distribution of words. It is the same on all machines with the same version of Python, and
somewhat different with another version.
"""

from __future__ import annotations

import functools
import re
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from p4reduce_bench.gradients.packages import package

UNKNOWN, MASK = 0, 1
"""Numbers that are no word: one stands for rare words, the other hides a word."""
_SPECIAL = 2
_WORD = re.compile(r"[a-z_]+|[0-9]+|[^\sa-z0-9_]")


@dataclass(frozen=True)
class Text:
    """A text. words: int64, shape (words,). documents: for each word, the number of its file."""

    words: Tensor
    documents: Tensor
    vocabulary: int
    """The numbers of words are below it."""


@functools.cache
def _sources() -> tuple[tuple[str, ...], ...]:
    """Return the words of each file, in the order of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [library / "pydoc_data" / "topics.py", *sorted(library.glob("*.py"))]
    texts = (file.read_text("utf-8", "replace") for file in files if file.is_file())
    return tuple(tuple(_WORD.findall(text.lower())) for text in texts)


@functools.cache
def text(vocabulary: int) -> Text:
    """Return the text as numbers below `vocabulary`; frequent words have low numbers, rare ones are UNKNOWN."""
    sources = _sources()
    counts = Counter(word for words in sources for word in words)
    # Words with equal counts are ordered by themselves, so that words are numbered alike everywhere.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    number = {word: index for index, (word, _) in enumerate(ranked[: vocabulary - _SPECIAL], start=_SPECIAL)}
    return Text(
        words=torch.tensor([number.get(word, UNKNOWN) for words in sources for word in words]),
        documents=torch.tensor([index for index, words in enumerate(sources) for _ in words]),
        vocabulary=vocabulary,
    )


def documents() -> int:
    """Return the number of files of the text."""
    return len(_sources())


@functools.cache
def digits(side: int) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's 1,797 handwritten digits of 8 by 8 pixels (Alpaydin and Kaynak, UCI), enlarged.

    Images are float32, shape (1797, 3, side, side), with mean 0 and deviation 1; labels are int64, shape (1797,).
    """
    package("sklearn")
    loaded = package("sklearn.datasets").load_digits()
    images = torch.from_numpy(loaded.images).float()[:, None]
    images = functional.interpolate((images - images.mean()) / images.std(), size=(side, side), mode="bilinear")
    return images.expand(-1, 3, -1, -1), torch.from_numpy(loaded.target).long()


def shard(count: int, rank: int, workers: int, samples: int, seed: int) -> Tensor:
    """Return the numbers of the samples that a rank takes, out of `count`, in order: int64, shape (samples,).

    In each epoch all samples are shuffled, alike at all ranks, and distributed, as by torch's DistributedSampler.
    """
    own: list[Tensor] = []
    epoch = 0
    while sum(part.numel() for part in own) < samples:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        own.append(order[: count // workers * workers][rank::workers])
        epoch += 1
    return torch.cat(own)[:samples]
