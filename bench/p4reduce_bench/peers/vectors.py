# SPDX-License-Identifier: Apache-2.0
"""Sparse vectors, and their exchange between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
Dense = npt.NDArray[np.float32]

_DENSE = 8  # up to so many indices for each non-zero element, a dense array adds faster than sorting


@dataclass(frozen=True)
class Vector:
    """A sparse vector. indices: int32, increasing, shape (n,). values: float32, shape (n,)."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]

    @classmethod
    def of(cls, dense: npt.NDArray[np.float32]) -> Vector:
        """Return the elements of a dense vector that are not zero."""
        indices = np.flatnonzero(dense != 0).astype(np.int32)
        return cls(indices, dense[indices])

    def dense(self, numel: int) -> npt.NDArray[np.float32]:
        """Return the dense vector: shape (numel,)."""
        made = np.zeros(numel, np.float32)
        made[self.indices] = self.values
        return made

    def words(self) -> Words:
        """Return the vector as it is sent: indices, then values, 4 bytes each."""
        return np.concatenate([self.indices, self.values.view(np.int32)])

    @classmethod
    def from_words(cls, words: Words) -> Vector:
        """Return the vector that `words` returned in this form."""
        half = words.size // 2
        return cls(words[:half], words[half:].view(np.float32))

    def between(self, start: int, end: int) -> Vector:
        """Return the elements with indices from `start` to before `end`."""
        some = slice(*np.searchsorted(self.indices, (start, end)))
        return Vector(self.indices[some], self.values[some])

    def reaching(self, magnitude: float) -> Vector:
        """Return the elements of at least that magnitude."""
        kept = np.abs(self.values) >= magnitude
        return Vector(self.indices[kept], self.values[kept])

    def largest(self, count: int) -> Vector:
        """Return the elements of the largest magnitude; among equals, those with lower indices."""
        if self.indices.size <= count:
            return self
        magnitudes = np.abs(self.values)
        least = np.partition(magnitudes, -count)[-count] if count else np.inf
        kept = magnitudes > least
        kept[np.flatnonzero(magnitudes == least)[: count - int(kept.sum())]] = True
        return Vector(self.indices[kept], self.values[kept])


def added(vectors: Sequence[Vector]) -> Vector:
    """Return the sum of some vectors."""
    indices = np.concatenate([vector.indices for vector in vectors])
    if not indices.size:
        return vectors[0]
    first, last = int(indices.min()), int(indices.max())
    if indices.size * _DENSE > last - first:
        dense = np.zeros(last - first + 1, np.float32)
        for vector in vectors:
            dense[vector.indices - first] += vector.values
        some = Vector.of(dense)
        return Vector(some.indices + np.int32(first), some.values)
    values = np.concatenate([vector.values for vector in vectors])
    order = np.argsort(indices, kind="stable")  # a stable sort merges runs that are in order
    indices, values = indices[order], values[order]
    starts = np.flatnonzero(np.diff(indices, prepend=-1))
    return Vector(indices[starts], np.add.reduceat(values, starts))


def chained(vectors: Sequence[Vector]) -> Vector:
    """Return the concatenation of vectors that have no index in common."""
    indices = np.concatenate([vector.indices for vector in vectors])
    return Vector(indices, np.concatenate([vector.values for vector in vectors]))


class Exchange:
    """An exchange of messages between ranks. words: those of 4 bytes that this rank has sent, without lengths."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self.rank, self.size = int(dist.get_rank()), int(dist.get_world_size())
        self.words = 0

    def swap(
        self, to: Mapping[int, Words], of: Sequence[int], lengths: Mapping[int, int] | None = None
    ) -> dict[int, Words]:
        """Send to some ranks, and return the messages of some.

        lengths: of the messages, in words, if the algorithm determines them. Otherwise they are sent ahead, since Gloo
        receives only messages of known size.
        """
        if lengths is None:
            told = {rank: self._torch.zeros(1, dtype=self._torch.int64) for rank in of}
            self._move({rank: self._torch.tensor([words.size]) for rank, words in to.items()}, told)
            lengths = {rank: int(length) for rank, length in told.items()}
        come = {rank: self._torch.empty(lengths[rank], dtype=self._torch.int32) for rank in of}
        self._move({rank: self._torch.from_numpy(np.ascontiguousarray(words)) for rank, words in to.items()}, come)
        self.words += sum(words.size for words in to.values())
        return {rank: tensor.numpy() for rank, tensor in come.items()}

    def all_to_all(self, parts: Sequence[Words], lengths: Sequence[int] | None = None) -> list[Words]:
        """Send part i to rank i, all at a time, first to the next rank. lengths: of the messages, by rank."""
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        come = self.swap(
            {to: parts[to] for to in others}, others, None if lengths is None else dict(enumerate(lengths))
        )
        return [come.get(rank, parts[rank]) for rank in range(self.size)]

    def all_gather(self, own: Words, lengths: Sequence[int] | None = None) -> list[Words]:
        """Return all ranks' words: by recursive doubling for powers of two of ranks, otherwise from each to each.

        lengths: of all ranks' words, if the algorithm determines them.
        """
        if self.size & (self.size - 1):
            return self.all_to_all([own] * self.size, lengths)
        if lengths is None:
            lengths = [int(words[0]) for words in self.all_gather(np.array([own.size], np.int32), [1] * self.size)]
        have = {self.rank: own}
        distance = 1
        while distance < self.size:
            partner, ranks = self.rank ^ distance, sorted(have)
            theirs = [rank ^ distance for rank in ranks]
            sizes = [lengths[rank] for rank in theirs]
            sent = np.concatenate([have[rank] for rank in ranks])
            come = self.swap({partner: sent}, [partner], {partner: sum(sizes)})[partner]
            have.update(zip(theirs, np.split(come, np.cumsum(sizes)[:-1]), strict=True))
            distance *= 2
        return [have[rank] for rank in range(self.size)]

    def _move(self, to: Mapping[int, Any], into: Mapping[int, Any]) -> None:
        under_way = [self._dist.irecv(tensor, rank) for rank, tensor in into.items() if tensor.numel()]
        under_way += [self._dist.isend(tensor, rank) for rank, tensor in to.items() if tensor.numel()]
        for work in under_way:
            work.wait()


def power_of_two(size: int) -> int:
    """Return log2 of a number of ranks. Raises ValueError."""
    if size & (size - 1):
        raise ValueError(f"{size} ranks: accepted are powers of two")
    return size.bit_length() - 1
