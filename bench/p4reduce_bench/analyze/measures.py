# SPDX-License-Identifier: Apache-2.0
"""Measures of the sparsity of several workers' tensors, of each and together.

Overlap, densification and skew are defined as in Zen (Wang et al., "ZEN: Empowering Distributed Training with
Sparsity-driven Data Synchronization", OSDI 2025, arXiv:2309.13254), for elements. Here they are computed from masks,
and a mask may also describe blocks: see `block_mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import BLOCK_SIZES_ACCEPTED, DEFAULT_BLOCK_SIZE, DEFAULT_LANES
from p4reduce_bench.allreduce.limit import ring, traffic
from p4reduce_bench.recordings import Mask

DEFAULT_SLOTS = 64


@dataclass(frozen=True)
class Measures:
    """The measures of some workers' masks. A unit is an element or a block."""

    workers: int
    units: int
    """The number of units of each worker, zero or not."""
    density: float
    """The share of units that are not zero at a worker, as the mean over the workers."""
    union: float
    """The share of units that are not zero at one worker or more: the density of the sum."""
    overlap: float | None
    """The non-zero units that two workers have in common, as a share of the sparser worker's: the mean over all pairs
    of workers with non-zero units, None without such a pair. 1: the same units everywhere; 0: none in common."""
    densification: float | None
    """The density of the sum / the density of a worker: from 1, full overlap, to `workers`, none. None: all is zero."""
    skew: float | None
    """The density of the densest of `workers` equal parts / the density of the whole, as the mean over the workers with
    non-zero units; 1 is even. None: all is zero."""


def block_mask(mask: Mask, block_size: int) -> Mask:
    """Return the mask of the blocks of `block_size` consecutive elements that are not all zero.

    mask: of elements, shape (..., numel). The result has shape (..., ceil(numel / block_size)); the last block may be
    shorter.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size}: must be at least 1")
    whole = mask.shape[-1] // block_size
    blocks: Mask = np.asarray(mask[..., : whole * block_size].reshape(*mask.shape[:-1], whole, block_size).any(axis=-1))
    if whole * block_size < mask.shape[-1]:
        tail = mask[..., whole * block_size :].any(axis=-1, keepdims=True)
        blocks = np.concatenate([blocks, tail], axis=-1)
    return blocks


def measure(masks: Mask) -> Measures:
    """Return density and Zen's measures. masks: the non-zero units, shape (workers, units), at least one worker."""
    if masks.ndim != 2 or masks.shape[0] < 1:
        raise ValueError(f"masks has shape {masks.shape}: must be (workers, units), with at least one worker")
    workers, units = masks.shape
    counts = np.count_nonzero(masks, axis=1)
    union = int(np.count_nonzero(masks.any(axis=0)))
    total = int(counts.sum())
    return Measures(
        workers=workers,
        units=units,
        density=total / (workers * units) if units else 0.0,
        union=union / units if units else 0.0,
        overlap=_overlap(masks, counts),
        densification=union * workers / total if total else None,
        skew=_skew(masks, counts),
    )


def _overlap(masks: Mask, counts: npt.NDArray[np.intp]) -> float | None:
    shares = [
        np.count_nonzero(masks[one] & masks[other]) / min(counts[one], counts[other])
        for one, other in combinations(range(len(masks)), 2)
        if counts[one] and counts[other]
    ]
    return float(np.mean(shares)) if shares else None


def _skew(masks: Mask, counts: npt.NDArray[np.intp]) -> float | None:
    workers, units = masks.shape
    some = counts > 0
    if not some.any():
        return None
    parts = [part for part in np.array_split(masks[some], workers, axis=1) if part.shape[1]]
    densities = np.stack([np.count_nonzero(part, axis=1) / part.shape[1] for part in parts])
    return float(np.mean(densities.max(axis=0) / (counts[some] / units)))


@dataclass(frozen=True)
class Expected:
    """The least time that the links allow, in seconds, without computing and waiting."""

    ring_s: float
    """The time of a ring allreduce of the dense float32 tensors."""
    switch_s: float
    """The time through the switch, with the non-zero blocks of the tensors."""

    @property
    def speed_up(self) -> float:
        return self.ring_s / self.switch_s


def expected(buckets: Sequence[Mask], block_size: int, bits_per_second: float, slots: int = DEFAULT_SLOTS) -> Expected:
    """Return the expected times on links of this rate in each direction, for tensors that are reduced one by one.

    buckets: the non-zero elements of each tensor, shape (workers, numel), at least one. Packets carry 256 values, like
    those of the shipped program, in blocks of `block_size`: 32, 64, 128 or 256.
    """
    if block_size not in BLOCK_SIZES_ACCEPTED:
        raise ValueError(f"block_size={block_size}: accepted are {', '.join(map(str, BLOCK_SIZES_ACCEPTED))}")
    lanes = DEFAULT_LANES * DEFAULT_BLOCK_SIZE // block_size
    return Expected(
        ring_s=sum(ring(4 * mask.shape[1], mask.shape[0]).seconds(bits_per_second) for mask in buckets),
        switch_s=sum(
            traffic(block_mask(mask, block_size), slots, lanes, block_size).seconds(bits_per_second) for mask in buckets
        ),
    )
