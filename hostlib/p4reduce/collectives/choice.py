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
from typing import Any, NamedTuple

import numpy as np

from p4reduce.collectives.plan import Layout, Taken
from p4reduce.tensors.places import Code

LEAST = 1 << 14
"""Elements of a tensor of which it is worth while to ask."""
MOST = 1 << 12
"""Sites that are remembered."""
_SAMPLE = 1024  # blocks of a result that are looked at
_LONGEST_PAUSE = 64  # calls
_WORD = 4  # bytes
# What a host takes for it, in seconds, by `p4reduce bench allreduce` on loopback: rough figures are enough here.
_PER_BYTE = 1.2e-9  # that travels, in the kernel and in workers
_PER_ELEMENT = 3e-9  # of a dense tensor that is looked through and written again
_PER_NUMBER = 70e-9  # that any rank tells, to be coded, merged and looked up
_HEADERS = 300e-6  # the operations before that of the values


@dataclass(frozen=True)
class Way:
    """What a tensor takes by one layout."""

    count: int
    """Blocks, or elements, that are not zero: of all ranks together."""
    bytes: float
    """That each rank receives, if places are random."""
    seconds: float
    """For these bytes on the link or in the host, and by elements for the computing, too."""


@dataclass(frozen=True)
class Estimate:
    """What a tensor takes by either layout."""

    blocks: Way
    elements: Way
    link: int
    """Bits a second: the ranks' slowest; 0 where none is known."""

    @property
    def layout(self) -> Taken:
        """Which takes less time."""
        return "blocks" if self.blocks.seconds <= self.elements.seconds else "elements"

    def __str__(self) -> str:
        """As a reason for `layout`: "1.2 MB a rank in place of 12.6 MB by blocks, at 200 Mbit/s: ..."."""
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
    """Of a tensor of `size` elements: the bytes that each rank receives, if places are random, and what ranks tell."""

    elements: float
    blocks: float
    size: int
    numbers: int
    """Elements of all ranks."""
    full: int
    """Blocks of all ranks."""

    @classmethod
    def of_counts(cls, size: int, block: int, per_word: int, elements: Sequence[int], blocks: Sequence[int]) -> Costs:
        """`elements`, `blocks`: of each rank, those that are not zero. block: elements of one."""
        codes = sum(Code(count, size).words for count in elements)
        return cls(
            elements=_WORD * (codes + _union(size, elements) / per_word),
            blocks=_WORD * _union(-(-size // block), blocks) * block / per_word,
            size=size,
            numbers=sum(elements),
            full=sum(blocks),
        )

    def estimate(self, links: Sequence[int]) -> Estimate:
        """links: of all ranks, bits a second, 0 where one is not known."""
        slowest = min(filter(None, links), default=0)
        per_byte = max(_PER_BYTE, 8 / slowest if slowest > 0 else 0.0)
        computed = _HEADERS + _PER_ELEMENT * self.size + _PER_NUMBER * self.numbers
        return Estimate(
            blocks=Way(self.full, self.blocks, self.blocks * per_byte),
            elements=Way(self.numbers, self.elements, self.elements * per_byte + computed),
            link=max(0, slowest),
        )


def _union(size: int, counts: Sequence[int]) -> float:
    """How many of `size` places some rank has, if each takes its own at random."""
    return size * (1 - math.prod(1 - count / size for count in counts)) if size else 0.0


def why_blocks(layout: Layout, size: int, *, residual: bool) -> str:
    """Why a call goes by blocks that does not choose."""
    if layout == "blocks":
        return "asked for"
    if residual:
        return "there is a residual"
    return f"fewer than {LEAST} elements" if size < LEAST else "an asynchronous call does not choose"


class Choices:
    """What a communicator remembers of its calls: those of a `site` have the same size, dtype and operation.

    A site's first calls go by blocks. When a result has many zeros within its blocks, the next call begins with a
    header, by which ranks choose. Where that says blocks, more and more calls go by before it is asked for again.

    The sites of the latest calls are remembered, `MOST` of them: all ranks make the same calls, so forget the same.
    """

    def __init__(self) -> None:
        self._sites: dict[Hashable, SiteState] = {}  # the last call's last

    def __getitem__(self, site: Hashable) -> SiteState:
        """What is known of the site of the next call."""
        state = self._sites.pop(site, None) or SiteState()
        self._sites[site] = state
        if len(self._sites) > MOST:
            del self._sites[next(iter(self._sites))]
        return state

    def chosen(self, site: Hashable, layout: Taken, estimate: Estimate) -> None:
        """What a header made ranks choose."""
        self._sites[site] = self[site].after_choice(layout, estimate)

    def came(self, site: Hashable, before: SiteState, result: Any, block: int, per_word: int) -> None:
        """What went by blocks of so many elements gave `result`. before: what was known when it began; so it does no
        harm to call this again, after an interrupt."""
        self._sites[site] = before.after_blocks(result, block, per_word)


class SiteState(NamedTuple):
    """What is known of a site."""

    asks: bool = False
    """The next call begins with a header."""
    why: str = "the first call: no sum is known yet"
    """Why the next call goes by blocks, where it does not ask."""
    pause: int = 0
    """Calls until the next header at the earliest."""
    last_pause: int = 0

    def after_choice(self, layout: Taken, estimate: Estimate) -> SiteState:
        """After a header made ranks choose."""
        if layout == "elements":
            return SiteState(True, self.why)
        pause = min(_LONGEST_PAUSE, 2 * self.last_pause or 1)
        return SiteState(False, f"as the ranks chose when they last compared: {estimate}", pause, pause)

    def after_blocks(self, result: Any, block: int, per_word: int) -> SiteState:
        """After a call that went by blocks of so many elements."""
        if self.pause:
            return self._replace(pause=self.pause - 1)
        size, elements, blocks = _sampled(result, block)
        asks = elements_may_save(size, block, per_word, elements, blocks)
        held = f"{elements / (blocks * block):.0%} of its blocks' elements were not zero" if blocks else "it was zero"
        return self._replace(asks=asks, why=f"by the last sum that was sampled, elements save nothing: {held}")


def elements_may_save(size: int, block: int, per_word: int, elements: int, blocks: int) -> bool:
    """Whether a sum with so many elements and blocks that are not zero suggests elements: as if a single rank had all,
    for what ranks have in common is not to be seen in a sum."""
    return Code(elements, size).words + elements / per_word < blocks * block / per_word


def _sampled(result: Any, block: int) -> tuple[int, int, int]:
    """How many elements some of its blocks have, how many of these are not zero, and in how many blocks."""
    flat = np.asarray(result).reshape(-1) if isinstance(result, np.ndarray) else result.detach().reshape(-1)
    whole = flat.shape[0] // block
    rows = flat[: whole * block].reshape(whole, block)[:: max(1, whole // _SAMPLE)] != 0
    return rows.shape[0] * block, int(rows.sum()), int(rows.any(1).sum())
