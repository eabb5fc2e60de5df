# SPDX-License-Identifier: Apache-2.0
"""The gradients that a plan is for: of a model with a density, or those of a recording, at any size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4reduce.collectives.choice import elements_may_save
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE as BLOCK
from p4reduce_bench.recordings import Recording, find
from p4reduce_simulator.workload import DTYPES, Workload

_CHUNK = 4096  # elements of a recording that a sample has next to each other
_LARGEST = 127
_SAMPLE = 1 << 20


class Gradients(ABC):
    """The gradients of one step. name: for people. numel: the elements of a rank's gradient."""

    name: str
    numel: int

    @abstractmethod
    def sample(self, numel: int) -> Workload:
        """Return a workload of about `numel` elements that has the same share and pattern of zeros."""

    def is_scattered(self) -> bool:
        """Return whether there are zeros within the blocks that are not zero, so that elements may save something."""
        mask = next(self.sample(_SAMPLE).masks(1, 0))
        unit = self.sample(_SAMPLE).unit
        elements = np.flatnonzero(np.repeat(mask, unit)[: self.numel])
        blocks = int(np.count_nonzero(np.diff(elements // BLOCK, prepend=-1)))
        return elements_may_save(min(_SAMPLE, self.numel), BLOCK, 1, len(elements), blocks)

    @abstractmethod
    def union(self, ranks: int) -> float | None:
        """Return the share of elements that are not zero in the sum; None if it is that of the sample."""


@dataclass(frozen=True)
class Drawn(Gradients):
    """Gradients whose zeros are drawn at random, as those of `workload`."""

    name: str
    numel: int
    workload: Workload

    def sample(self, numel: int) -> Workload:
        return replace(self.workload, numel=min(numel, self.numel))

    def union(self, ranks: int) -> float | None:
        return self.workload.union(ranks)


@dataclass(frozen=True)
class Recorded(Gradients):
    """Recorded gradients of all parameters, one file a rank. Samples are written to `folder`."""

    name: str
    numel: int
    recordings: tuple[Recording, ...]
    folder: Path

    @classmethod
    def read(cls, path: Path, ranks: int, folder: Path) -> Recorded:
        """Return the recordings at `path`. Recordings of other steps stand for ranks that were not there.

        Raises P4ReduceError if there are fewer than `ranks`.
        """
        recordings = [one for some in find([path]).values() for one in some]
        if len(recordings) < ranks:
            raise P4ReduceError(
                f"{path}: has {len(recordings)} recordings, of all ranks and steps together, for --workers {ranks}: "
                "accepted are as many as workers; p4reduce bench gradients --record-at records several steps"
            )
        numel = _flat(recordings[0]).size
        if not numel:
            raise P4ReduceError(f"{recordings[0].path}: has no elements: accepted are gradients with one or more")
        return cls(path.name, numel, tuple(recordings[:ranks]), folder)

    def sample(self, numel: int) -> Workload:
        """Return evenly spaced chunks of each recording, whose values are small integers: only zeros matter."""
        file = self.folder / f"{numel}.npy"
        at = self._positions(numel)
        if not file.exists():
            made = []
            for recording in self.recordings:
                values = _flat(recording)
                if values.size != self.numel:
                    raise P4ReduceError(f"{recording.path}: has {values.size} elements, the first one {self.numel}")
                some = values[at]
                made.append(np.where(some == 0, 0, np.arange(some.size) % _LARGEST + 1).astype(DTYPES["float32"]))
            np.save(file, np.stack(made))
        return Workload(numel=at.size, file=str(file))

    def union(self, ranks: int) -> float | None:  # noqa: ARG002
        return None

    def _positions(self, numel: int) -> npt.NDArray[np.intp]:
        """Return the elements of a sample, in order."""
        if numel >= self.numel:
            return np.arange(self.numel)
        chunks = -(-self.numel // _CHUNK)
        wanted = max(1, numel // _CHUNK)
        first = (np.arange(wanted) * chunks // wanted) * _CHUNK
        at = (first[:, None] + np.arange(_CHUNK)).reshape(-1)
        return at[at < self.numel]


def _flat(recording: Recording) -> npt.NDArray[np.float32]:
    gradients = recording.gradients()
    names = [name for bucket in recording.facts.buckets for name in bucket]
    return np.concatenate([gradients[name].reshape(-1) for name in names]).astype(np.float32)
