# SPDX-License-Identifier: Apache-2.0
"""Recorded gradients as inputs of an allreduce with a known exact sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.numbers import magnitude_bits
from p4reduce.tensors.spec import wire_for
from p4reduce_bench import recordings
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.inputs import Values
from p4reduce_bench.recordings import Recording

_DTYPE = "float32"
_SIGNIFICANT = 24  # bits of float32: every sum of integers below 2^24 is exact


@dataclass(frozen=True)
class Recorded:
    """The recorded gradients of one training."""

    model: str
    sparsifier: str
    found: dict[int, list[Recording]]
    """The recordings of all ranks, by iteration."""

    @property
    def workers(self) -> int:
        return len(next(iter(self.found.values())))

    def __str__(self) -> str:
        return f"{self.model}, {self.sparsifier}"


def read(folder: Path, model: str, sparsifier: str) -> Recorded:
    """Return the recordings in a folder. Raises P4ReduceError if no iteration has files of all ranks, 2 or more."""
    found = recordings.find([folder])
    complete = {
        iteration: some for iteration, some in found.items() if len(some) == some[0].facts.world_size and len(some) > 1
    }
    if not complete:
        raise P4ReduceError(f"{folder}: no iteration was recorded by all ranks, of which there must be 2 or more")
    return Recorded(model, sparsifier, complete)


def kept(folder: Path) -> Iterator[Recorded]:
    """Yield the recordings in folders MODEL/SPARSIFIER, as `--keep` writes them, or those in the folder itself.

    Raises P4ReduceError if there are none.
    """
    inside = sorted({file.parent for file in folder.glob("*/*/*.npz")})
    if not inside:
        if not any(folder.glob("*.npz")):
            raise P4ReduceError(f"--replay {folder}: holds no recordings, nor do folders MODEL/SPARSIFIER in it")
        yield read(folder, folder.resolve().name, "as recorded")
    for one in inside:
        yield read(one, one.parent.name, one.name)


def exact(gradients: Sequence[Values], bits: int) -> Values:
    """Return workers' gradients as multiples of 2^-bits from -1 to 1, with exact sums: float32, shape (workers, numel).

    All are divided by the power of two above the largest magnitude, and rounded. No value becomes zero.
    """
    made = np.stack(gradients)
    largest = float(np.abs(made).max(initial=0))
    if not math.isfinite(largest):
        raise P4ReduceError(
            "the recorded gradients have elements that are not finite, so there is no sum to compare with"
        )
    _, exponent = math.frexp(largest)
    signs = np.sign(made)
    for own, sign in zip(made, signs, strict=True):
        integers = np.maximum(np.rint(np.abs(np.ldexp(own.astype(np.float64), bits - exponent))), 1)
        own[:] = sign * np.ldexp(integers, -bits)
    return made


def cases(recorded: Recorded, folder: Path) -> Iterator[tuple[int, Case]]:
    """Yield each iteration with its case, whose inputs are in a file in `folder`: all buckets as one tensor."""
    for iteration, some in recorded.found.items():
        workers = len(some)
        form = wire_for(_DTYPE, "auto")
        bits = min(_SIGNIFICANT - (workers - 1).bit_length(), magnitude_bits(form, workers))
        inputs = exact([_flat(one) for one in some], bits)
        file = folder / f"{recorded.model}, {recorded.sparsifier}, step {iteration}.npy"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(file, inputs)
        density = float(np.count_nonzero(inputs) / max(1, inputs.size))
        yield iteration, Case(workers, inputs.shape[1], _DTYPE, density, "recorded", "recorded", file=str(file))


def _flat(recording: Recording) -> npt.NDArray[Any]:
    gradients = recording.gradients()
    names = [name for bucket in recording.facts.buckets for name in bucket]
    return np.concatenate([gradients[name].reshape(-1) for name in names]).astype(np.float32)
