# SPDX-License-Identifier: Apache-2.0
"""Recordings of gradients, as `p4reduce.tensors.recordings` writes them.

A file of another origin, without a description, counts as one bucket.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4reduce.errors import P4ReduceError
from p4reduce.tensors.recordings import FACTS, VERSION, Facts

Mask: TypeAlias = npt.NDArray[np.bool_]


def element_mask(values: npt.NDArray[Any]) -> Mask:
    """Return the mask of the elements that are not zero (NaN is not), in row-major order: shape (numel,)."""
    mask: Mask = values.reshape(-1) != 0
    return mask


@dataclass(frozen=True)
class Recording:
    """The path of a file, and the description that it contains."""

    path: Path
    facts: Facts

    def masks(self) -> dict[str, Mask]:
        """Return the mask of each parameter's gradient, in the order of the file."""
        return {name: element_mask(array) for name, array in self.gradients().items()}

    def gradients(self) -> dict[str, npt.NDArray[Any]]:
        """Return each parameter's gradient, in the order of the file."""
        return {name: array for name, array in _arrays(self.path).items() if name != FACTS}


def find(paths: Sequence[Path]) -> dict[int, list[Recording]]:
    """Return the recordings of files and of folders, by iteration, ordered by rank.

    Files without a description stand for the ranks 0, 1, ... of one iteration. Raises P4ReduceError for a file that
    cannot be read, and for two files of the same rank and iteration.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.npz"))
            if not inside:
                deeper = sorted({str(file.parent) for file in path.glob("*/*/*.npz")})
                instead = f", but in {', '.join(deeper)}: analyze one training at a time" if deeper else ""
                raise P4ReduceError(f"{path}: there are no .npz files in this folder{instead}")
            files += inside
        else:
            files.append(path)
    found: dict[int, dict[int, Recording]] = {}
    for number, file in enumerate(files):
        recording = Recording(file, _facts(file, number, len(files)))
        ranks = found.setdefault(recording.facts.iteration, {})
        rank = recording.facts.rank
        if rank in ranks:
            raise P4ReduceError(
                f"{ranks[rank].path} and {file} are both of rank {rank} and iteration {recording.facts.iteration}: "
                "analyze one training at a time"
            )
        ranks[rank] = recording
    return {iteration: [ranks[rank] for rank in sorted(ranks)] for iteration, ranks in sorted(found.items())}


def _facts(path: Path, number: int, files: int) -> Facts:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files) - {FACTS}
            if not names:
                raise ValueError
            if FACTS not in file.files:
                return Facts(number, files, 0, [list(file.files)])
            made = Facts(**json.loads(str(file[FACTS])))
    except OSError as error:
        raise P4ReduceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile):
        raise P4ReduceError(f"{path}: is not an .npz file of gradients") from None
    if made.version != VERSION:
        raise P4ReduceError(f"{path}: has version {made.version}: accepted is {VERSION}")
    if not _sound(made, names):
        raise P4ReduceError(f"{path}: its description is invalid, or does not match its arrays")
    return made


def _sound(facts: Facts, names: set[str]) -> bool:
    numbers = (facts.rank, facts.world_size, facts.iteration)
    if not all(isinstance(number, int) for number in numbers) or not 0 <= facts.rank < facts.world_size:
        return False
    if not isinstance(facts.buckets, list) or not all(isinstance(bucket, list) and bucket for bucket in facts.buckets):
        return False
    said = [name for bucket in facts.buckets for name in bucket]
    return all(isinstance(name, str) for name in said) and len(said) == len(names) and set(said) == names


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise P4ReduceError(f"{path}: holds no plain arrays, or is damaged: {error}") from None
    for name, array in arrays.items():
        if name != FACTS and array.dtype.kind not in "biufc":
            raise P4ReduceError(f"{path}: array {name!r} has dtype {array.dtype}: accepted are numbers")
    return arrays
