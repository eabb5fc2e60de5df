# SPDX-License-Identifier: Apache-2.0
"""Zen (Wang et al., OSDI 2025): balanced parallelism with a hash bitmap.

As published: the hash of an index determines the rank that adds it up, so that ranks have equal work whatever the skew
(push: indices and values). Sums come back as values and a bitmap over the indices of that rank, which all ranks know
(pull). Missing: the hierarchical hashing on GPUs, which orders the pushed elements, while here NumPy sorts them; and
the choice among schemes.

A rank pushes 2k(P - 1)/P words, and sends its pulled sums, E/(32 P) + u/P words of a union of u, to P - 1 others.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from p4reduce_bench.peers.vectors import Exchange, Vector, Words, added, chained


def zen(exchange: Exchange, own: Vector, numel: int) -> Vector:
    size = exchange.size
    owner = _owner(own.indices, size)
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=size))[:-1]
    indices, values = np.split(own.indices[order], cuts), np.split(own.values[order], cuts)
    parts = [Vector(*part).words() for part in zip(indices, values, strict=True)]
    mine = added([Vector.from_words(words) for words in exchange.all_to_all(parts)])
    come = exchange.all_to_all([_as_bitmap(mine, owned(numel, size)[exchange.rank])] * size)
    sums = [_of_bitmap(words, indices) for words, indices in zip(come, owned(numel, size), strict=True)]
    return chained(sums)


@functools.cache
def owned(numel: int, size: int) -> list[npt.NDArray[np.int32]]:
    """Return the indices of each rank, in order. Zen computes them once before training, so this is not timed."""
    indices = np.arange(numel, dtype=np.int32)
    owner = _owner(indices, size)
    return [indices[owner == rank] for rank in range(size)]


def _owner(indices: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.uint8]:
    """Return the rank of each index, by multiplicative hashing (Knuth)."""
    mixed = indices.astype(np.uint32) * np.uint32(2654435761)
    owner: npt.NDArray[np.uint8] = ((mixed >> np.uint32(16)) % np.uint32(size)).astype(np.uint8)
    return owner  # which NumPy sorts by radix


def _as_bitmap(vector: Vector, indices: npt.NDArray[np.int32]) -> Words:
    bits = np.zeros(-(-indices.size // 32) * 32, np.uint8)
    bits[np.searchsorted(indices, vector.indices)] = 1
    return np.concatenate([np.packbits(bits).view(np.int32), vector.values.view(np.int32)])


def _of_bitmap(words: Words, indices: npt.NDArray[np.int32]) -> Vector:
    length = -(-indices.size // 32)
    bits = np.unpackbits(words[:length].view(np.uint8))[: indices.size]
    return Vector(indices[np.flatnonzero(bits)], words[length:].view(np.float32))
