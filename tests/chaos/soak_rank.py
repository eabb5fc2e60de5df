# SPDX-License-Identifier: Apache-2.0
"""One rank of `soak`: reduces tensors whose sums are known until it is told to stop, and checks every element.

It prints a JSON object with its counts every half second. SIGTERM ends all ranks after the tensors in flight.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import p4reduce
from p4reduce.join import joining
from p4reduce.local.host import digest
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.inputs import tensors

NUMEL = 1 << 18
SPARSITY = ((1.0, "all", "float32"), (0.3, "random", "float32"), (0.05, "none", "float32"), (1.0, "all", "int32"))
SAY_EVERY_S = 0.5
FACTORS = 15  # turns until a tensor is the same again


class WrongSum(Exception):
    """An element of a result is not the sum."""


@dataclass
class Reduction:
    """A tensor to reduce again and again, with other values each time: shape (numel,)."""

    case: Case
    own: npt.NDArray[Any]
    total: npt.NDArray[Any]
    work: npt.NDArray[Any]
    expected: npt.NDArray[Any]

    @classmethod
    def of(cls, case: Case, rank: int) -> Reduction:
        own, total = (array.astype(case.dtype) for array in tensors(case, rank))
        return cls(case, own, total, np.empty_like(own), np.empty_like(own))

    def prepare(self, turn: int) -> npt.NDArray[Any]:
        """Return the values of this turn, so that what is left of another turn cannot pass for its sum."""
        step = turn % FACTORS
        factor = step + 1 if self.case.dtype == "int32" else (-1) ** turn * 2.0 ** (step - FACTORS // 2)
        np.multiply(self.own, self.own.dtype.type(factor), out=self.work)
        np.multiply(self.total, self.total.dtype.type(factor), out=self.expected)
        return self.work

    def check(self, turn: int) -> None:
        """Raise WrongSum unless every element is right."""
        if np.array_equal(self.work, self.expected):
            return
        at = np.flatnonzero(self.work != self.expected)
        raise WrongSum(
            f"turn {turn}, {self.case.dtype}, {self.case}: {at.size} of {self.work.size} elements are wrong, the first "
            f"at {at[0]}: {self.work[at[0]]!r}, not {self.expected[at[0]]!r}"
        )


def run(communicator: p4reduce.Communicator, rounds: int, told: Sequence[int]) -> None:
    """Reduce until there were so many rounds, or a rank was `told` to stop."""
    reductions = [
        Reduction.of(Case(communicator.world_size, NUMEL, dtype, density, overlap, "block", seed), communicator.rank)
        for seed, (density, overlap, dtype) in enumerate(SPARSITY)
    ]
    turn = checked = 0
    said = 0.0
    while True:
        handles = [communicator.allreduce_async(reduction.prepare(turn)) for reduction in reductions]
        for handle, reduction in zip(handles, reductions, strict=True):
            handle.wait()
            reduction.check(turn)
            checked += reduction.work.size
        turn += 1
        stats = communicator.stats()
        # All ranks have to stop after the same collective.
        stop = communicator.allreduce(np.array([bool(told) or stats.rounds >= rounds], np.int32)).any()
        if stop or time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            print(json.dumps({
                "rank": communicator.rank,
                "rounds": stats.rounds,
                "operations": stats.operations,
                "elements_checked": checked,
                "packets": stats.packets_sent,
                "resent": stats.retransmissions,
                "backend": p4reduce.backend().name,
            }), flush=True)  # fmt: skip
        if stop:
            return


def main() -> None:
    """Join and run; `soak` starts this with torchrun's variables."""
    slots, rounds, host = (int(argument) for argument in sys.argv[1:])
    here = digest()
    vars(joining)["host_digest"] = lambda _: (
        f"{host} {here}"[:64] if here else ""
    )  # so this machine seems to be several
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with p4reduce.Communicator(job="soak", slots=slots, timeout=120) as communicator:
        try:
            run(communicator, rounds, told)
        except WrongSum as error:
            print(json.dumps({"error": str(error)}), flush=True)
            raise


if __name__ == "__main__":
    main()
