# SPDX-License-Identifier: Apache-2.0
"""Whether a dense tensor's zeros are left out by blocks or by elements: whichever takes less time.

That is the bytes of each way times what a byte took when this way was last gone, as on fast links it is not bytes that
count. All is decided by what all ranks know alike: results, and the headers of `collectives.sparse`.
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
_FORGETTING = 0.9
_WORD = 4  # bytes


@dataclass(frozen=True)
class Costs:
    """Bytes that each rank receives, of a tensor of so many elements; random places are taken for granted."""

    elements: float
    blocks: float

    @classmethod
    def of_counts(cls, size: int, block: int, per_word: int, elements: Sequence[int], blocks: Sequence[int]) -> Costs:
        """`elements`, `blocks`: of each rank, those that are not zero. block: elements of one."""
        numbers = sum(Code(count, size).words for count in elements)
        return cls(
            elements=_WORD * (numbers + _union(size, elements) / per_word),
            blocks=_WORD * _union(-(-size // block), blocks) * block / per_word,
        )

    def blocks_are_less(self, blocks: Sequence[int], elements: Sequence[int]) -> bool:
        """By these rates of all ranks, 0 where one is not known. The rank that came last has waited for nobody."""
        rate_blocks = min(filter(None, blocks), default=0)
        rate_elements = min(filter(None, elements), default=0)
        if rate_blocks and rate_elements:
            return self.blocks * rate_blocks <= self.elements * rate_elements
        return self.blocks <= self.elements


def _union(size: int, counts: Sequence[int]) -> float:
    """How many of `size` places some rank has, if each takes its own at random."""
    return size * (1 - math.prod(1 - count / size for count in counts)) if size else 0.0


class Choices:
    """What a communicator remembers of its calls: those of a `site` have the same size, dtype and operation.

    A site's first calls go by blocks. When a result has many zeros within its blocks, the next call begins with a
    header, by which ranks choose. Where that says blocks, more and more calls go by before it is asked for again.
    A rate is picoseconds a byte.
    """

    def __init__(self) -> None:
        self._sites: dict[Hashable, _Site] = {}

    def asks(self, site: Hashable) -> bool:
        """Whether the next call begins with a header."""
        return self._of(site).asks

    def rates(self, site: Hashable) -> tuple[int, int]:
        """Of blocks and elements, at this rank."""
        return self._of(site).rates[False], self._of(site).rates[True]

    def chosen(self, site: Hashable, elements: bool) -> None:
        """What a header made ranks choose."""
        self._of(site).chosen(elements)

    def took(self, site: Hashable, elements: bool, seconds: float, nbytes: float) -> None:
        """How long a call took that went by elements or by blocks."""
        self._of(site).took(elements, seconds, nbytes)

    def came(self, site: Hashable, result: Any, block: int, per_word: int) -> None:
        """What went by blocks of so many elements gave `result`."""
        self._of(site).came(result, block, per_word)

    def _of(self, site: Hashable) -> _Site:
        return self._sites.setdefault(site, _Site())


class _Site:
    def __init__(self) -> None:
        self.asks = False
        self.rates = {False: 0, True: 0}
        """By whether it went by elements."""
        self._pause = 0  # calls until the next header at the earliest
        self._last_pause = 0

    def chosen(self, elements: bool) -> None:
        self.asks = elements
        self._last_pause = 0 if elements else min(_LONGEST_PAUSE, 2 * self._last_pause or 1)
        self._pause = self._last_pause
        if not elements:  # so that it is tried again some time, as links change
            self.rates[True] = int(self.rates[True] * _FORGETTING)

    def took(self, elements: bool, seconds: float, nbytes: float) -> None:
        rate = max(1, round(seconds / max(nbytes, 1.0) * 1e12))
        before = self.rates[elements]
        # What others computed meanwhile is not the way's.
        self.rates[elements] = min(rate, round(before / _FORGETTING)) if before else rate

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
