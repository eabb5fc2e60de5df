# SPDX-License-Identifier: Apache-2.0
"""The tensors that ranks reduce, and their exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE as BLOCK

PATTERNS = ("blocks", "elements", "clustered")
OVERLAPS = ("random", "all", "none")
DTYPES = {"float32": np.float32, "int32": np.int32}
_LARGEST = 127
_MASK, _VALUES = 0, 1  # random sequences

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """Allreduces of tensors that are zero where the pattern says so.

    numel: elements of a tensor.
    density: the share of non-zero blocks, or of non-zero elements with the pattern "elements".
    pattern: "blocks" and "elements" are independent of each other; "clustered" are blocks in runs of `run` on average.
    block: elements of a block.
    overlap: whether the ranks' non-zeros are independent ("random"), the same ("all"), or as different as possible
        ("none").
    operations: how many allreduces follow each other. Each is submitted `interval` seconds after the one before.
    warm_up: allreduces before these, which are not part of the result: in the first one, workers measure the path.
    late: seconds that the last rank is later than the others.
    jitter: the longest time that a rank is late at random, in seconds.
    skew: the largest difference of a host's clock from the time, in seconds; and drift: in seconds a second.
    file: an array of shape (ranks, numel) with the tensors, as .npy, which replaces numel, density and pattern.
    """

    numel: int = 1 << 18
    density: float = 1.0
    pattern: str = "blocks"
    overlap: str = "random"
    run: int = 16
    block: int = BLOCK
    dtype: str = "float32"
    operations: int = 1
    interval: float = 0.0
    warm_up: int = 1
    late: float = 0.0
    jitter: float = 0.0
    skew: float = 0.0
    drift: float = 0.0
    file: str | None = None

    def __post_init__(self) -> None:
        for name, accepted in (("pattern", PATTERNS), ("overlap", OVERLAPS), ("dtype", tuple(DTYPES))):
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name} {getattr(self, name)}: accepted are {', '.join(accepted)}")
        for name, least, most, unit in (
            ("numel", 1, 1 << 40, ""),
            ("density", 0, 1, ""),
            ("run", 1, 1 << 20, ""),
            ("block", 1, 1 << 20, ""),
            ("operations", 1, 1 << 16, ""),
            ("interval", 0, 3600, "s"),
            ("warm_up", 0, 1 << 16, ""),
            ("late", 0, 3600, "s"),
            ("jitter", 0, 3600, "s"),
            ("skew", 0, 10**6, "s"),
            ("drift", 0, 1e-2, ""),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name)}{unit}: accepted are {least} to {most}{unit}")

    @property
    def unit(self) -> int:
        """Elements that are zero or not together: those of a block, or one."""
        return 1 if self.file or self.pattern == "elements" else self.block

    def tensors(self, ranks: int, seed: int, operation: int = 0) -> Iterator[Array]:
        """Yield each rank's tensor. Sums of any of them are exact in the dtype."""
        if self.file:
            yield from self._stored(ranks)
            return
        for rank, mask in enumerate(self.masks(ranks, seed, operation)):
            yield self._values(np.random.default_rng([seed, operation, _VALUES, rank]), mask, ranks)

    def masks(self, ranks: int, seed: int, operation: int = 0) -> Iterator[npt.NDArray[np.bool_]]:
        """Yield which units of each rank's tensor are not zero."""
        if self.file:
            yield from (values != 0 for values in self._stored(ranks))
            return
        drawn: npt.NDArray[np.float32] | None = None
        for rank in range(ranks):
            if drawn is None or self.overlap == "random":
                drawn = self._draw(np.random.default_rng([seed, operation, _MASK, rank]))
            start = np.float32(rank * self.density % 1 if self.overlap == "none" else 0)
            yield (drawn - start) % np.float32(1) < self.density

    def _stored(self, ranks: int) -> Iterator[Array]:
        stored = np.load(str(self.file), mmap_mode="r")
        if stored.ndim != 2 or stored.shape[0] < ranks:
            raise ValueError(f"{self.file} has shape {stored.shape}: accepted is ({ranks} ranks or more, elements)")
        for rank in range(ranks):
            yield np.array(stored[rank], dtype=DTYPES[self.dtype])

    def _draw(self, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return a number of 0 to 1 for each block or element. Those below the density are non-zero."""
        blocks = -(-self.numel // self.block)
        if self.pattern == "elements":
            return rng.random(self.numel, np.float32)
        if self.pattern == "blocks":
            return rng.random(blocks, np.float32)
        runs = rng.geometric(1 / self.run, 2 * blocks // self.run + 64)
        drawn = np.repeat(rng.random(len(runs), np.float32), runs)
        return drawn[:blocks] if len(drawn) >= blocks else np.resize(drawn, blocks)

    def _values(self, rng: np.random.Generator, mask: npt.NDArray[np.bool_], ranks: int) -> Array:
        largest = min(_LARGEST, (1 << 20) // ranks)
        values = rng.integers(1, largest, self.numel, np.int32, endpoint=True)
        values = np.where(rng.integers(0, 2, self.numel, np.int8), values, -values).astype(DTYPES[self.dtype])
        if self.pattern == "elements":
            values[~mask] = 0
        else:
            values[np.repeat(~mask, self.block)[: self.numel]] = 0
        return values


def exact_sum(total: Array | None, values: Array) -> Array:
    """Return the sum so far with another rank's values."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64) if total is None else total + values
