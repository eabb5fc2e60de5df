# SPDX-License-Identifier: Apache-2.0
"""The tensors that ranks reduce, and their exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE as BLOCK

PATTERNS = ("blocks", "elements", "rows", "runs", "clustered")
OVERLAPS = ("random", "all", "none")
DTYPES = {"float32": np.float32, "int32": np.int32}
_LARGEST = 127
_MASK, _VALUES, _COMMON = 0, 1, 2  # random sequences

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """Allreduces of tensors that are zero where the pattern says so.

    numel: elements of a tensor.
    density: the share of non-zero blocks, rows or elements.
    pattern: "blocks", "rows" and "elements" are independent of each other; "runs" are elements, and "clustered" are
        blocks, in runs of `run` on average.
    block, run: elements of a block; elements of a row, and elements or blocks of a run.
    overlap: whether the ranks' non-zeros are independent ("random"), the same ("all"), or as different as possible
        ("none"); or a share of them that all ranks have in common, while the others are independent.
    dense: a share of the elements, at the end, that is never zero, and does not count in the density.
    operations: how many allreduces follow each other. Each is submitted `interval` seconds after the one before.
    warm_up: allreduces before these, which are not part of the result: in the first one, workers measure the path.
    warm_up_numel: the elements of each of these at most; 0: all.
    late: seconds that the last rank is later than the others.
    jitter: the longest time that a rank is late at random, in seconds.
    skew: the largest difference of a host's clock from the time, in seconds; and drift: in seconds a second.
    file: an array of shape (ranks, elements), as .npy, whose first `numel` columns replace density and pattern.
    """

    numel: int = 1 << 18
    density: float = 1.0
    pattern: str = "blocks"
    overlap: str | float = "random"
    dense: float = 0.0
    run: int = 16
    block: int = BLOCK
    dtype: str = "float32"
    operations: int = 1
    interval: float = 0.0
    warm_up: int = 1
    warm_up_numel: int = 0
    late: float = 0.0
    jitter: float = 0.0
    skew: float = 0.0
    drift: float = 0.0
    file: str | None = None

    def __post_init__(self) -> None:
        for name, accepted in (("pattern", PATTERNS), ("dtype", tuple(DTYPES))):
            if getattr(self, name) not in accepted:
                raise ValueError(f"{name} {getattr(self, name)}: accepted are {', '.join(accepted)}")
        if self.overlap not in OVERLAPS and not (isinstance(self.overlap, (int, float)) and 0 <= self.overlap <= 1):
            raise ValueError(f"overlap {self.overlap}: accepted are {', '.join(OVERLAPS)}, and shares of 0 to 1")
        for name, least, most, unit in (
            ("numel", 1, 1 << 40, ""),
            ("density", 0, 1, ""),
            ("dense", 0, 1, ""),
            ("run", 1, 1 << 20, ""),
            ("block", 1, 1 << 20, ""),
            ("operations", 1, 1 << 16, ""),
            ("interval", 0, 3600, "s"),
            ("warm_up", 0, 1 << 16, ""),
            ("warm_up_numel", 0, 1 << 40, ""),
            ("late", 0, 3600, "s"),
            ("jitter", 0, 3600, "s"),
            ("skew", 0, 10**6, "s"),
            ("drift", 0, 1e-2, ""),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name)}{unit}: accepted are {least} to {most}{unit}")

    @property
    def unit(self) -> int:
        """Elements that are zero or not together: those of a block or row, or one."""
        if self.file or self.pattern in ("elements", "runs"):
            return 1
        return self.run if self.pattern == "rows" else self.block

    def first(self, numel: int) -> Workload:
        """Return the same with tensors of `numel` elements at most."""
        return replace(self, numel=min(numel, self.numel))

    def union(self, ranks: int) -> float:
        """Return the expected share of elements that are not zero in the sum of so many ranks; not of a file."""
        common, own = self._shares()
        others = min(1.0, ranks * own) if self.overlap == "none" else 1 - (1 - own) ** ranks
        return self.dense + (1 - self.dense) * (common + (1 - common) * others)

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
        common, own = self._shares()
        drawn = self._draw(np.random.default_rng([seed, operation, _COMMON]))
        same = drawn < common
        for rank in range(ranks):
            if own and (not rank or self.overlap != "none"):
                drawn = self._draw(np.random.default_rng([seed, operation, _MASK, rank]))
            start = np.float32(rank * own % 1 if self.overlap == "none" else 0)
            mask = same | ((drawn - start) % np.float32(1) < own if start else drawn < own)
            mask[len(mask) - round(self.dense * len(mask)) :] = True
            yield mask

    def _shares(self) -> tuple[float, float]:
        """Return the share of units that all ranks have, and of the others the share that each rank has."""
        share = {"random": 0.0, "all": 1.0, "none": 0.0}.get(str(self.overlap), self.overlap)
        common = float(share) * self.density
        return common, (self.density - common) / (1 - common) if common < 1 else 0.0

    def _stored(self, ranks: int) -> Iterator[Array]:
        stored = np.load(str(self.file), mmap_mode="r")
        if stored.ndim != 2 or stored.shape[0] < ranks or stored.shape[1] < self.numel:
            accepted = f"({ranks} ranks or more, {self.numel} elements or more)"
            raise ValueError(f"{self.file} has shape {stored.shape}: accepted is {accepted}")
        for rank in range(ranks):
            yield self._converted(stored[rank, : self.numel])

    def _converted(self, stored: Array) -> Array:
        """Return the values in the dtype: floats are rounded. Raises ValueError if the dtype has none that are near."""
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.array(stored, dtype=DTYPES[self.dtype])
        is_float = values.dtype.kind == "f"
        kept = np.isfinite(values) == np.isfinite(stored) if is_float else values == stored
        if not kept.all():
            value = stored[int(np.argmin(kept))]
            raise ValueError(f"{self.file} has the value {value}, and {self.dtype} has none that is near")
        return values

    def _draw(self, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return a number of 0 to 1 for each unit. Those below the density are non-zero."""
        units = -(-self.numel // self.unit)
        if self.pattern not in ("runs", "clustered"):
            return rng.random(units, np.float32)
        runs = rng.geometric(1 / self.run, 2 * units // self.run + 64)
        drawn = np.repeat(rng.random(len(runs), np.float32), runs)
        return drawn[:units] if len(drawn) >= units else np.resize(drawn, units)

    def _values(self, rng: np.random.Generator, mask: npt.NDArray[np.bool_], ranks: int) -> Array:
        """Return values that are not zero where the mask is set. Memory of zeros is not touched."""
        largest = min(_LARGEST, (1 << 20) // ranks)
        units = np.flatnonzero(mask)
        drawn = rng.integers(-largest, largest, (len(units), self.unit), np.int8)
        drawn += drawn >= 0
        values = np.zeros((len(mask), self.unit), DTYPES[self.dtype])
        values[units] = drawn
        return values.reshape(-1)[: self.numel]


def exact_sum(total: Array | None, values: Array) -> Array:
    """Return the sum so far with another rank's values, which are added in place."""
    if total is None:
        return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    with np.errstate(invalid="ignore"):  # of infinities
        total += values
    return total
