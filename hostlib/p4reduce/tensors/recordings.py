# SPDX-License-Identifier: Apache-2.0
"""Files of gradients: one for a rank and an iteration, an uncompressed or compressed .npz without pickled objects.

Each parameter's gradient is one array under the parameter's name. The array FACTS holds a JSON text with the rank, the
iteration, and the buckets of DDP. `p4reduce analyze` reads them.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FACTS = "p4reduce"
VERSION = 1

_MOSTLY_ZERO = 0.5


@dataclass(frozen=True)
class Facts:
    """The description that a file contains of itself."""

    rank: int
    world_size: int
    iteration: int
    buckets: list[list[str]]
    """The names of the parameters in each bucket, in their order there."""
    version: int = VERSION


def path_of(folder: Path, iteration: int, rank: int) -> Path:
    """Return the path of a rank's gradients of an iteration."""
    return folder / f"gradients-{iteration:08d}-rank{rank}.npz"


def write(path: Path, facts: Facts, gradients: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a file as a whole or not at all. It is compressed if most gradients are zero."""
    if FACTS in gradients:
        raise ValueError(f"a parameter is called {FACTS!r}, a name that the file needs for its own description")
    nonzero = sum(int(np.count_nonzero(gradient)) for gradient in gradients.values())
    total = sum(gradient.size for gradient in gradients.values())
    compression = zipfile.ZIP_DEFLATED if nonzero < _MOSTLY_ZERO * total else zipfile.ZIP_STORED
    arrays = {FACTS: np.array(json.dumps(asdict(facts))), **gradients}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    # np.savez takes names as keywords, and a parameter may have the name of one of its own arguments.
    with zipfile.ZipFile(unfinished, "w", compression, compresslevel=1) as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    os.replace(unfinished, path)
