# SPDX-License-Identifier: Apache-2.0
"""Whether a dense tensor's zeros are left out by blocks or by elements: whichever takes less time.

That is the bytes of each way on the ranks' slowest link, and what hosts have to compute. All is decided by what all
ranks know alike, results and the headers of `collectives.sparse`, and by nothing that is measured: so a program that
runs again chooses the same, and has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from p4reduce.tensors.dense import is_torch
from p4reduce.tensors.places import Code

Layout: TypeAlias = Literal["auto", "blocks", "elements"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

LEAST = 1 << 14
"""Elements of a tensor of which it is worth while to ask."""
_SAMPLE = 1024  # blocks of a result that are looked at
_LONGEST_PAUSE = 64  # calls
_WORD = 4  # bytes
# What a host takes for it, in seconds, by `p4reduce bench allreduce` on loopback: rough figures are enough here.
_PER_BYTE = 1.2e-9  # that travels, in the kernel and in workers
_PER_ELEMENT = 3e-9  # of a dense tensor that is looked through and written again
_PER_NUMBER = 70e-9  # that any rank tells, to be coded, merged and looked up
_HEADERS = 300e-6  # the operations before that of the values


@dataclass(frozen=True)
class Costs:
    """Of a tensor of `size` elements: the bytes that each rank receives, if places are random, and what ranks tell."""

    elements: float
    blocks: float
    size: int
    numbers: int
    """Elements of all ranks."""

    @classmethod
    def of_counts(cls, size: int, block: int, per_word: int, elements: Sequence[int], blocks: Sequence[int]) -> Costs:
        """`elements`, `blocks`: of each rank, those that are not zero. block: elements of one."""
        codes = sum(Code(count, size).words for count in elements)
        return cls(
            elements=_WORD * (codes + _union(size, elements) / per_word),
            blocks=_WORD * _union(-(-size // block), blocks) * block / per_word,
            size=size,
            numbers=sum(elements),
        )

    def blocks_take_less(self, links: Sequence[int]) -> bool:
        """links: of all ranks, bits a second, 0 where one is not known."""
        slowest = min(filter(None, links), default=0)
        per_byte = max(_PER_BYTE, 8 / slowest if slowest > 0 else 0.0)
        computed = _HEADERS + _PER_ELEMENT * self.size + _PER_NUMBER * self.numbers
        return self.blocks * per_byte <= self.elements * per_byte + computed


def _union(size: int, counts: Sequence[int]) -> float:
    """How many of `size` places some rank has, if each takes its own at random."""
    return size * (1 - math.prod(1 - count / size for count in counts)) if size else 0.0


class Choices:
    """What a communicator remembers of its calls: those of a `site` have the same size, dtype and operation.

    A site's first calls go by blocks. When a result has many zeros within its blocks, the next call begins with a
    header, by which ranks choose. Where that says blocks, more and more calls go by before it is asked for again.
    """

    def __init__(self) -> None:
        self._sites: dict[Hashable, _Site] = {}

    def asks(self, site: Hashable) -> bool:
        """Whether the next call begins with a header."""
        return self._of(site).asks

    def chosen(self, site: Hashable, elements: bool) -> None:
        """What a header made ranks choose."""
        self._of(site).chosen(elements)

    def came(self, site: Hashable, result: Any, block: int, per_word: int) -> None:
        """What went by blocks of so many elements gave `result`."""
        self._of(site).came(result, block, per_word)

    def _of(self, site: Hashable) -> _Site:
        return self._sites.setdefault(site, _Site())


class _Site:
    def __init__(self) -> None:
        self.asks = False
        self._pause = 0  # calls until the next header at the earliest
        self._last_pause = 0

    def chosen(self, elements: bool) -> None:
        self.asks = elements
        self._last_pause = 0 if elements else min(_LONGEST_PAUSE, 2 * self._last_pause or 1)
        self._pause = self._last_pause

    def came(self, result: Any, block: int, per_word: int) -> None:
        if self._pause:
            self._pause -= 1
            return
        size, elements, blocks = _sampled(result, block)
        # As if a single rank had all: what ranks have in common is not to be seen in a sum.
        costs = Costs.of_counts(size, block, per_word, [elements], [blocks])
        self.asks = costs.elements < costs.blocks


def _sampled(result: Any, block: int) -> tuple[int, int, int]:
    """How many elements some of its blocks have, how many of these are not zero, and in how many blocks."""
    flat = result.detach().reshape(-1) if is_torch(result) else np.asarray(result).reshape(-1)
    whole = flat.shape[0] // block
    rows = flat[: whole * block].reshape(whole, block)[:: max(1, whole // _SAMPLE)] != 0
    return rows.shape[0] * block, int(rows.sum()), int(rows.any(1).sum())
