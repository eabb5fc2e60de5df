# SPDX-License-Identifier: Apache-2.0
"""The measured cases, and their form on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from p4reduce.collectives.plan import Layout
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.numbers import Wire
from p4reduce.tensors.spec import WireChoice, wire_for

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
"""The bytes of an element."""
OVERLAPS = ("random", "all", "none")
SPARSITIES = ("block", "element")
SYSTEMS = ("p4reduce", "gloo", "gloo-sparse", "mpi")
PEERS = (
    "agsparse", "sparcml", "sparcml-split", "sparcml-dense", "oktopk", "zen", "gtopk",
    "gloo-fp16", "gloo-bf16", "gloo-int8",
)  # fmt: skip
"""Others' systems, written for this comparison: see `p4reduce_bench.peers`."""
MPIS = ("mpi", "openmpi", "mpich")
"""The MPI on PATH, and those of environments of their own: see `p4reduce_bench.allreduce.mpi`."""
SHARED_MEMORY = ("openmpi", "mpich", "deepspeed")
"""Others' systems that share memory on one host, measured by default where p4reduce does so, too."""
MODES = ("omnireduce", "switchml")
"""Others' systems as modes of ours: see `p4reduce_bench.peers.streaming`."""
C_API = "p4reduce-c"
"""Ours through the C API, without Python's `Communicator`."""
ONE_HOST = (C_API, "deepspeed")
"""Systems that work only among ranks of one host."""
ALWAYS: dict[str, Layout] = {"p4reduce-blocks": "blocks", "p4reduce-elements": "elements"}
"""Layouts of ours, between which p4reduce chooses, by the names under which each is a system of its own."""
DTYPES_OF = {
    **dict.fromkeys(MODES, ("float32", "int32")),
    **{peer: ("float32",) for peer in PEERS if not peer.startswith("gloo-")},
    C_API: ("float32", "int32", "float16"),
    "deepspeed": ("float32", "float16", "bfloat16"),
}
"""The dtypes of systems that do not take all of `DTYPES`."""
BY_DOUBLING = ("sparcml", "gtopk")
"""Systems whose steps need a power of two of workers."""
OURS = {"dense": "p4reduce", "coo": "p4reduce-coo", "shared": "p4reduce-shared"}
"""The system's name by what it is given: dense tensors, COO tensors, or dense tensors of `p4reduce.shared_empty`."""
IN_PLACE = ("p4reduce", "p4reduce-shared", C_API, "gloo", *MPIS, "deepspeed")
"""Systems whose dense result is in the tensor that they were given, so that it can be filled and reduced again."""
ALL_SYSTEMS = (*SYSTEMS, *SHARED_MEMORY, C_API, *ALWAYS, *MODES, *PEERS)
SWITCHED = (*OURS.values(), *ALWAYS, *MODES)
"""Systems that the switch adds up for."""
TARGETS = ("native", "sim", "bmv2")
DENSITIES = "1,0.8,0.4,0.2,0.1,0.08,0.04,0.02,0.01,0"
"""The densities of OmniReduce's published artifact, and 0."""

_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One point of the grid."""

    workers: int
    numel: int
    dtype: str
    density: float
    """The share of blocks, or of elements, that are not zero at a worker."""
    overlap: str
    sparsity: str
    seed: int = 1
    wire: WireChoice = "auto"
    """How the switch's sums of floats travel."""
    file: str = ""
    """A .npy file with the tensors: float32, shape (workers, numel), with sums that are exact in any order. Density,
    overlap and sparsity then only describe the file. Empty: the tensors are made."""
    ranks_per_host: int = 1
    """Workers r * ranks_per_host and those after it share host r and its link."""

    @property
    def form(self) -> Wire:
        """The number format on the wire that `wire` leads to."""
        return wire_for(self.dtype, self.wire)

    def form_of(self, system: str) -> Wire | None:
        """Return the number format of a system's packets; None for a system without the switch."""
        if system in MODES:
            return "int32"
        return self.form if system in SWITCHED else None

    def __str__(self) -> str:
        workers = f"{self.workers} workers"
        if self.ranks_per_host > 1:
            workers += f" on {self.workers // self.ranks_per_host} hosts"
        if self.file:
            return f"{workers}, {Path(self.file).stem}"
        return f"{workers}, {self.numel} elements, density {self.density:g}, overlap {self.overlap}, by {self.sparsity}"


def grid(
    *,
    workers: Iterable[int],
    numels: Iterable[int],
    dtype: str,
    densities: Iterable[float],
    overlaps: Iterable[str],
    sparsities: Iterable[str],
    wire: WireChoice = "auto",
    ranks_per_host: int = 1,
) -> list[Case]:
    """Return all cases, ordered by number of workers."""
    return [
        Case(count, numel, dtype, density, overlap, sparsity, wire=wire, ranks_per_host=ranks_per_host)
        for count in workers
        for numel in numels
        for sparsity in sparsities
        for overlap in overlaps
        for density in densities
    ]


def listed(option: str, text: str, read: Callable[[str], T], accepted: str) -> list[T]:
    """Return the comma-separated values of an option. `read` raises an error for a value that is not `accepted`."""
    try:
        return [read(part.strip()) for part in text.split(",")]
    except (ValueError, KeyError):
        raise P4ReduceError(f"{option} {text}: accepted are {accepted}, separated by commas") from None


def choices(option: str, text: str, accepted: Iterable[str]) -> list[str]:
    """Return the comma-separated values of an option, each of which is `accepted`, and none of which is repeated."""
    names = {name: name for name in accepted}
    chosen = listed(option, text, names.__getitem__, ", ".join(names))
    if len(set(chosen)) < len(chosen):
        raise P4ReduceError(f"{option} {text}: accepted is each once")
    return chosen


def one_of(option: str, value: str, accepted: Iterable[str]) -> str:
    """Return the value of an option. Raises P4ReduceError unless it is `accepted`."""
    if value not in accepted:
        raise P4ReduceError(f"{option} {value}: accepted are {', '.join(accepted)}")
    return value


def check_ratio(ratio: float) -> None:
    """Raise P4ReduceError for a share of elements that cannot be sent."""
    if not 0 < ratio <= 1:
        raise P4ReduceError(f"--ratio {ratio:g}: must be above 0 and up to 1")


def check(systems: Iterable[str], cases: Iterable[Case]) -> None:
    """Raise P4ReduceError if a system does not support a case."""
    for case in cases:
        for system in systems:
            if case.dtype not in DTYPES_OF.get(system, DTYPES):
                raise P4ReduceError(f"{system} of {case.dtype}: accepted are {', '.join(DTYPES_OF[system])}")
            if system in BY_DOUBLING and case.workers & (case.workers - 1):
                raise P4ReduceError(f"{system} with {case.workers} workers: accepted are powers of two")


def within(least: float, most: float) -> Callable[[str], float]:
    """Read a number from `least` to `most`."""

    def read(part: str) -> float:
        value = float(part)
        if not least <= value <= most:
            raise ValueError
        return value

    return read


def elements(text: str, dtype: str) -> int:
    """Return a number of elements: "26214400", or as many as fit into "100MiB" or "100MB"."""
    match = re.fullmatch(r"(\d+)(?:([kmg]?)(i?)b)?", text.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise P4ReduceError(f"--numel {text}: accepted are a number of elements, and a size such as 25MiB or 100MB")
    number, unit, binary = int(match[1]), match[2], match[3]
    if unit is None:
        return number
    return number * (_BINARY if binary else _DECIMAL)[unit] // DTYPES[dtype]


def bits_per_second(text: str, option: str = "--link") -> int:
    """Return a link's rate: "200mbit" or "1gbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text.strip().lower())
    if match is None or (rate := round(float(match[1]) * _DECIMAL[match[2]])) < 1000:
        raise P4ReduceError(f"{option} {text}: accepted are rates such as 200mbit, 1gbit and 2.5gbit, from 1kbit on")
    return rate
