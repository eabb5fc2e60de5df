# SPDX-License-Identifier: Apache-2.0
"""Zen (Wang et al., OSDI 2025): balanced parallelism with a hash bitmap.

Faithful: each place belongs to a rank by its hash, so that all ranks add up as much whatever the skew (push: places and
values), and sums come back as a bitmap over the places of that rank, which all know, and values (pull). Not here: the
hierarchical hashing on GPUs, which places what is pushed; here NumPy sorts it. Its choice among schemes is not, either.

A rank pushes 2k(P - 1)/P words, and sends its pulled sums, E/(32 P) + u/P words of a union of u, to P - 1 others.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from p4reduce_bench.peers.vectors import Exchange, Vector, Words, added, chained


def zen(exchange: Exchange, own: Vector, numel: int) -> Vector:
    size = exchange.size
    owner = _owner(own.places, size)
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=size))[:-1]
    places, values = np.split(own.places[order], cuts), np.split(own.values[order], cuts)
    parts = [Vector(*part).words() for part in zip(places, values, strict=True)]
    mine = added([Vector.from_words(words) for words in exchange.all_to_all(parts)])
    come = exchange.all_to_all([_as_bitmap(mine, owned(numel, size)[exchange.rank])] * size)
    sums = [_of_bitmap(words, places) for words, places in zip(come, owned(numel, size), strict=True)]
    return chained(sums)


@functools.cache
def owned(numel: int, size: int) -> list[npt.NDArray[np.int32]]:
    """Return the places of each rank, in order. Zen makes them once, ahead of training: make them ahead of the
    clock."""
    places = np.arange(numel, dtype=np.int32)
    owner = _owner(places, size)
    return [places[owner == rank] for rank in range(size)]


def _owner(places: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.uint8]:
    """By multiplicative hashing (Knuth)."""
    mixed = places.astype(np.uint32) * np.uint32(2654435761)
    owner: npt.NDArray[np.uint8] = ((mixed >> np.uint32(16)) % np.uint32(size)).astype(np.uint8)
    return owner  # which NumPy sorts by radix


def _as_bitmap(vector: Vector, places: npt.NDArray[np.int32]) -> Words:
    bits = np.zeros(-(-places.size // 32) * 32, np.uint8)
    bits[np.searchsorted(places, vector.places)] = 1
    return np.concatenate([np.packbits(bits).view(np.int32), vector.values.view(np.int32)])


def _of_bitmap(words: Words, places: npt.NDArray[np.int32]) -> Vector:
    length = -(-places.size // 32)
    bits = np.unpackbits(words[:length].view(np.uint8))[: places.size]
    return Vector(places[np.flatnonzero(bits)], words[length:].view(np.float32))
