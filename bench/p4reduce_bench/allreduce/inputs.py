# SPDX-License-Identifier: Apache-2.0
"""Tensors whose sum is known exactly: small integers times powers of two, zero where the case wants zeros.

All workers' values are functions of the case, or are in its file. So each rank can compute the exact sum itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce.protocol.numbers import magnitude_bits, values_per_word
from p4reduce_bench.allreduce.grid import Case

BLOCK = DEFAULT_BLOCK_SIZE

# A block has so many times `BLOCK` values if a word carries four of them.
_LARGEST = 4
# Values repeat after this many blocks, a prime times `_LARGEST`: out of step with slots and lanes.
_TILE_BLOCKS = 1021 * _LARGEST
# Integers up to this are exact, and so is every partial sum of the values of `_tile`.
_EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "int32": 1 << 24}
_MASK, _TILE = 0, 1  # random streams

Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float32]


def _masks(case: Case) -> Iterator[Mask]:
    """Yield for each worker the mask of its non-zero blocks, or elements.

    Overlap all: the same mask at every worker; none: disjoint masks, or as nearly as the density allows.
    """
    if case.file:
        yield from (own != 0 for own in np.load(case.file, mmap_mode="r"))
        return
    units = case.numel if case.sparsity == "element" else -(-case.numel // BLOCK)
    drawn = None
    for worker in range(case.workers):
        if case.overlap == "random" or drawn is None:
            drawn = np.random.default_rng([case.seed, _MASK, worker]).random(units, np.float32)
        if case.overlap == "none":
            start = np.float32(worker * case.density % 1)
            yield (drawn - start) % np.float32(1) < case.density
        else:
            yield drawn < case.density


def _tile(case: Case, worker: int) -> Values:
    """Return values of both signs, none of them zero: shape (blocks, BLOCK)."""
    blocks = min(_TILE_BLOCKS, -(-case.numel // BLOCK))
    rng = np.random.default_rng([case.seed, _TILE, worker])
    most = min(127, _EXACT[case.dtype] // case.workers, 2 ** magnitude_bits(case.form, case.workers) - 1)
    values = rng.integers(1, most + 1, (blocks, BLOCK)) * rng.choice([-1, 1], (blocks, BLOCK))
    # Scales are the same at all workers, so that sums are exact, and differ from block to block. With single elements,
    # a block of the wire may contain elements of several blocks, so there they are all 1.
    varied = case.dtype != "int32" and case.sparsity == "block"
    scales = 2.0 ** (np.arange(blocks) // _LARGEST % 8 - 4) if varied else np.ones(blocks)
    tile: Values = (values * scales[:, None]).astype(np.float32)
    return tile


def _masked(case: Case, worker: int, mask: Mask) -> Values:
    """Return one worker's tensor, exact as float32 for every dtype of a case: shape (numel,)."""
    values = np.resize(_tile(case, worker), case.numel)
    if case.sparsity == "element":
        values *= mask
    else:
        whole = case.numel // BLOCK
        values[: whole * BLOCK].reshape(-1, BLOCK)[~mask[:whole]] = 0
        if whole < mask.size and not mask[whole]:
            values[whole * BLOCK :] = 0
    return values


def tensors(case: Case, rank: int) -> tuple[Values, Values]:
    """Return the tensor of one rank, and the sum over all ranks: float32, exact in the case's dtype."""
    if case.file:
        stored = np.load(case.file, mmap_mode="r")
        return np.array(stored[rank]), np.sum(stored, axis=0, dtype=np.float32)
    total = np.zeros(case.numel, np.float32)
    own = total
    for worker, mask in enumerate(_masks(case)):
        values = _masked(case, worker, mask)
        total += values
        if worker == rank:
            own = values
    return own, total


def block_masks(case: Case, block_size: int = BLOCK) -> Mask:
    """Return the mask of the non-zero blocks on the wire: shape (workers, blocks).

    block_size: in words, a multiple of `BLOCK`.
    """
    by_element = case.sparsity == "element" or case.file
    per_block = values_per_word(case.form) * (block_size if by_element else block_size // BLOCK)
    return np.stack([_any(mask, per_block) for mask in _masks(case)])


def largest(case: Case) -> float:
    """Return a bound on the magnitude of all workers' elements."""
    if case.file:
        return float(np.abs(np.load(case.file, mmap_mode="r")).max(initial=0))
    return 127 * 2.0**3


def _any(mask: Mask, together: int) -> Mask:
    """Return for each run of `together` elements whether any is set."""
    padded = np.zeros(-(-mask.size // together) * together, np.bool_)
    padded[: mask.size] = mask
    made: Mask = np.any(padded.reshape(-1, together), axis=1)
    return made
