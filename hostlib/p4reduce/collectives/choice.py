# SPDX-License-Identifier: Apache-2.0
"""The choice of a dense tensor's layout, by blocks or by elements: the one that takes less time.

The time is estimated from each layout's bytes on the ranks' slowest link and from the hosts' computing. All ranks
decide from the same facts, results and the headers of `collectives.sparse`, and never from measurements. So all choose
the same layout, and a program that runs again gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from p4reduce.collectives.plan import Layout, Taken
from p4reduce.tensors.indices import Code

LEAST = 1 << 14
"""Fewest elements of a tensor for which a header is worth its time."""
MOST_SITES = 1 << 12
"""Most sites that are remembered."""
_SAMPLE = 1024  # blocks of a result that are sampled
_LONGEST_PAUSE = 64  # calls
_WORD = 4  # bytes
# Seconds of a host, from `p4reduce bench allreduce` on loopback: rough figures are enough here.
_SECONDS_PER_BYTE = 1.2e-9  # sent: time in the kernel and in workers
_SECONDS_PER_ELEMENT = 3e-9  # of a dense tensor: to scan and write it
_SECONDS_PER_NUMBER = 70e-9  # index that any rank sends: to code, merge and look it up
_SECONDS_OF_HEADERS = 300e-6  # the operations before that of the values


@dataclass(frozen=True)
class Way:
    """The cost of a tensor in one layout."""

    count: int
    """Non-zero blocks, or elements, of all ranks together."""
    bytes: float
    """Bytes that each rank receives, if the non-zeros are at random indices."""
    seconds: float
    """Time for these bytes on the link or in the host, and for the computing if the layout is by elements."""


@dataclass(frozen=True)
class Estimate:
    """The costs of a tensor in both layouts."""

    blocks: Way
    elements: Way
    link: int
    """Bits a second of the ranks' slowest link; 0 where none is known."""

    @property
    def layout(self) -> Taken:
        """The layout that takes less time."""
        return "blocks" if self.blocks.seconds <= self.elements.seconds else "elements"

    def __str__(self) -> str:
        """Return a reason for `layout`: "1.2 MB a rank in place of 12.6 MB by blocks, at 200 Mbit/s: ..."."""
        ways = {"blocks": self.blocks, "elements": self.elements}
        own, (other, instead) = ways.pop(self.layout), ways.popitem()
        rate = f"{self.link / 1e9:g} Gbit/s" if self.link >= 10**9 else f"{self.link / 1e6:g} Mbit/s"
        link = f"at {rate}" if self.link else "on links of unknown rate"
        return (
            f"{own.bytes / 1e6:.3g} MB a rank in place of {instead.bytes / 1e6:.3g} MB by {other}, {link}: "
            f"{own.seconds * 1e3:.3g} ms in place of {instead.seconds * 1e3:.3g} ms"
        )


@dataclass(frozen=True)
class Costs:
    """The bytes that each rank receives of a tensor, if the non-zeros are at random indices, and the ranks' counts."""

    elements: float
    blocks: float
    size: int
    """Elements of the tensor."""
    numbers: int
    """Non-zero elements, summed over the ranks."""
    full: int
    """Non-zero blocks, summed over the ranks."""

    @classmethod
    def of_counts(cls, size: int, block: int, per_word: int, elements: Sequence[int], blocks: Sequence[int]) -> Costs:
        """Return the costs for ranks with these counts of non-zeros.

        elements, blocks: each rank's non-zeros. block: elements of one block. per_word: values that a word carries.
        """
        codes = sum(Code(count, size).words for count in elements)
        return cls(
            elements=_WORD * (codes + _union(size, elements) / per_word),
            blocks=_WORD * _union(-(-size // block), blocks) * block / per_word,
            size=size,
            numbers=sum(elements),
            full=sum(blocks),
        )

    def estimate(self, links: Sequence[int]) -> Estimate:
        """Return the times of both layouts. links: all ranks' rates in bits a second, 0 where one is not known."""
        slowest = min(filter(None, links), default=0)
        per_byte = max(_SECONDS_PER_BYTE, 8 / slowest if slowest > 0 else 0.0)
        computed = _SECONDS_OF_HEADERS + _SECONDS_PER_ELEMENT * self.size + _SECONDS_PER_NUMBER * self.numbers
        return Estimate(
            blocks=Way(self.full, self.blocks, self.blocks * per_byte),
            elements=Way(self.numbers, self.elements, self.elements * per_byte + computed),
            link=max(0, slowest),
        )


def _union(size: int, counts: Sequence[int]) -> float:
    """Return how many of `size` indices at least one rank has on average, if each draws `counts` of them at random."""
    return size * (1 - math.prod(1 - count / size for count in counts)) if size else 0.0


def why_blocks(layout: Layout, size: int, *, residual: bool) -> str:
    """Return why a call that does not choose a layout goes by blocks."""
    if layout == "blocks":
        return "asked for"
    if residual:
        return "there is a residual"
    return f"fewer than {LEAST} elements" if size < LEAST else "an asynchronous call does not choose"


class Choices:
    """The call sites of a communicator, each with its state; calls of a site have the same size, dtype and operation.

    A site's first calls go by blocks. When a result has many zeros within its blocks, the next call begins with a
    header, by which the ranks choose. After each header that leads to blocks, the pause until the next one doubles.

    The `MOST_SITES` sites with the latest calls are remembered. All ranks make the same calls, so they forget the
    same sites.
    """

    def __init__(self) -> None:
        self._sites: dict[Hashable, SiteState] = {}  # the last call's last

    def __getitem__(self, site: Hashable) -> SiteState:
        """Return the state of the next call's site, which becomes the newest."""
        state = self._sites.pop(site, None) or SiteState()
        self._sites[site] = state
        if len(self._sites) > MOST_SITES:
            del self._sites[next(iter(self._sites))]
        return state

    def chosen(self, site: Hashable, layout: Taken, estimate: Estimate) -> None:
        """Record the layout that ranks chose from a header."""
        self._sites[site] = self[site].after_choice(layout, estimate)

    def came(self, site: Hashable, before: SiteState, result: Any, block: int, per_word: int) -> None:
        """Record the `result` of a call that went by blocks of `block` elements.

        before: the site's state when the call began. So it does no harm to call this again after an interrupt.
        """
        self._sites[site] = before.after_blocks(result, block, per_word)


class SiteState(NamedTuple):
    """The state of a site."""

    asks: bool = False
    """The next call begins with a header."""
    why: str = "the first call: no sum is known yet"
    """Why the next call goes by blocks, if it begins without a header."""
    pause: int = 0
    """Calls until the next header at the earliest."""
    last_pause: int = 0

    def after_choice(self, layout: Taken, estimate: Estimate) -> SiteState:
        """Return the state after ranks chose a layout from a header."""
        if layout == "elements":
            return SiteState(True, self.why)
        pause = min(_LONGEST_PAUSE, 2 * self.last_pause or 1)
        return SiteState(False, f"as the ranks chose when they last compared: {estimate}", pause, pause)

    def after_blocks(self, result: Any, block: int, per_word: int) -> SiteState:
        """Return the state after a call that went by blocks of `block` elements."""
        if self.pause:
            return self._replace(pause=self.pause - 1)
        size, elements, blocks = _sampled(result, block)
        asks = elements_may_save(size, block, per_word, elements, blocks)
        held = f"{elements / (blocks * block):.0%} of its blocks' elements were not zero" if blocks else "it was zero"
        return self._replace(asks=asks, why=f"by the last sum that was sampled, elements save nothing: {held}")


def elements_may_save(size: int, block: int, per_word: int, elements: int, blocks: int) -> bool:
    """Return whether a sum with these numbers of non-zero elements and blocks suggests the layout by elements.

    The estimate treats the sum as one rank's tensor, since a sum does not show which elements ranks have in common.
    """
    return Code(elements, size).words + elements / per_word < blocks * block / per_word


def _sampled(result: Any, block: int) -> tuple[int, int, int]:
    """Return how many elements a sample of its blocks has, how many are not zero, and how many blocks are not zero."""
    flat = np.asarray(result).reshape(-1) if isinstance(result, np.ndarray) else result.detach().reshape(-1)
    whole = flat.shape[0] // block
    rows = flat[: whole * block].reshape(whole, block)[:: max(1, whole // _SAMPLE)] != 0
    return rows.shape[0] * block, int(rows.sum()), int(rows.any(1).sum())
