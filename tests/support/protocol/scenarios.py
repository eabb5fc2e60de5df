# SPDX-License-Identifier: Apache-2.0
"""Random jobs, data and networks. A seed determines each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import BFLOAT16, narrowed
from p4reduce.protocol.numbers import WIRES, Wire, reference_allreduce, values_per_word

from .simulator import Network, Simulation

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]
INT32 = np.dtype(np.int32)

SPECIAL_FLOATS = np.array(
    [-0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, np.finfo(np.float32).max, np.finfo(np.float32).min],
    np.float32,
)
SPECIAL_INTS = np.array([2**31 - 1, -(2**31), -1], np.int32)


def random_membership(random: Random) -> Membership:
    return Membership(
        job=random.randrange(1, 2**16),
        generation=random.randrange(1, 2**16),
        rank=0,
        world_size=random.choice([1, 2, 2, 3, 3, 4, 5]) if random.random() < 0.97 else 32,
        # Now and then, more slots than the initial window.
        slots=random.randint(1, 4) if random.random() < 0.95 else random.randint(11, 40),
        lanes=random.choice([1, 2, 4, 8]),
        block_size=random.randint(1, 5) if random.random() < 0.8 else random.choice([32, 64, 128, 256]),
        first_seq=random.choice([0, 2**31 - 2, 2**32 - 2, 2**32 - 4, 2 * random.randrange(2**31)]),
        abort_secret=random.getrandbits(64),
    )


def random_racks(random: Random, membership: Membership) -> list[list[int]]:
    """Return the ranks of each leaf. Leaves differ in size, and ranks are in random order."""
    ranks = random.sample(range(membership.world_size), membership.world_size)
    cuts = sorted(random.sample(range(1, len(ranks)), random.randint(0, min(len(ranks) - 1, 4))))
    racks = [ranks[start:end] for start, end in zip([0, *cuts], [*cuts, len(ranks)], strict=True)]
    return racks if max(map(len, racks)) < 32 else [ranks[:16], ranks[16:]]


def random_network(random: Random) -> Network:
    return Network(
        loss=random.choice([0, 0.01, 0.1, 0.4]),
        duplicates=random.choice([0, 0.05, 0.3]),
        latency=0.0001,
        delay=random.choice([0, 0.0005, 0.02]),
        duplicate_delay=random.choice([0.001, 0.1, 5.0]),
    )


def random_array(random: Random, size: int, block_size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array in which some blocks and some values are zero, and now and then values are extreme."""
    rng = np.random.default_rng(random.getrandbits(64))
    special: npt.NDArray[Any]
    if dtype != np.int32:
        size_of_values = 10.0 ** random.choice([0, 0, -6, 4] if dtype == np.float16 else [0, 0, -30, 30])
        values: npt.NDArray[Any] = (rng.standard_normal(size) * size_of_values).astype(np.float32)
        special, zero = SPECIAL_FLOATS, random.choice([0.0, -0.0])
    else:
        values, special, zero = rng.integers(-1000, 1000, size, np.int32), SPECIAL_INTS, 0.0
    if random.random() < 0.3:
        awkward = rng.random(size) < random.choice([0.01, 0.1])
        values[awkward] = rng.choice(special, int(awkward.sum()))
    kept = rng.random(size // block_size + 1) < random.choice([0, 0.1, 0.5, 1, 1])
    values[~np.repeat(kept, block_size)[:size]] = zero
    values[rng.random(size) < random.choice([0, 0, 0.5])] = zero
    return narrowed(values, np.dtype(dtype))


@dataclass
class Call:
    """An allreduce: the operation and the input of each rank, and the result that is required."""

    operations: list[Operation]
    inputs: list[npt.NDArray[Any]]
    expected: npt.NDArray[Any]
    wire: Wire = "int32"

    def check(self) -> None:
        for operation, own in zip(self.operations, self.inputs, strict=True):
            assert operation.error is None
            assert operation.data.tobytes() == (own if operation.read_only else self.expected).tobytes()
        self._check_residuals()

    def _check_residuals(self) -> None:
        """Assert that the result and all residuals add up to the sum of the inputs."""
        if self.operations[0].residual is None or not np.isfinite(self.inputs).all():
            return
        left = [
            operation.residual.astype(np.float64) for operation in self.operations if operation.residual is not None
        ]
        with np.errstate(over="ignore"):  # as float32
            total = (np.sum(self.inputs, axis=0, dtype=np.float64) - np.sum(left, axis=0)).astype(np.float32)
        largest = np.max(np.abs(self.inputs), initial=0.0)
        with np.errstate(invalid="ignore"):  # the difference of two infinities
            assert np.all((np.abs(total - self.expected) <= largest * 1e-6) | (total == self.expected))


def call(
    arrays: list[npt.NDArray[Any]],
    block_size: int,
    wire: Wire = "int32",
    *,
    counter: int = 0,
    residual: bool = False,
    reader: int = -1,
    average: bool = False,
) -> Call:
    """Return an allreduce of these arrays.

    counter: the number of the operation within the job.
    reader: a rank whose operation must not write to its array.
    """
    operations = [
        Operation(
            array.copy(),
            wire=wire,
            divisor=len(arrays) if average else 1,
            residual=np.zeros_like(array) if residual else None,
            read_only=rank == reader,
        )
        for rank, array in enumerate(arrays)
    ]
    for operation in operations:
        operation.data.flags.writeable = not operation.read_only
    number = fingerprint(counter, operations[0].numbers, "sum", arrays[0].size)
    op = "avg" if average else "sum"
    expected = reference_allreduce(arrays, op, block_size=block_size, wire=wire, operation=number)
    return Call(operations, arrays, expected, wire)


def reduce_calls(simulation: Simulation, calls: list[Call], **how: Any) -> None:
    """Run the calls at every rank, and check the results.

    how: the options of `Simulation.reduce`.
    """
    simulation.reduce(list(zip(*(one.operations for one in calls), strict=True)), **how)
    for one in calls:
        one.check()


def check_end(simulation: Simulation, calls: list[Call]) -> None:
    """Let the packets still in flight arrive. Check that they change nothing, and that all workers are done."""
    simulation.drain()
    for one in calls:
        one.check()
    for worker in simulation.workers:
        assert worker.failure is None
        assert worker.idle
        assert worker.next_deadline() is None
        assert worker.stats.operations == len(calls)
        assert worker.stats.foreign == 0


def random_calls(random: Random, membership: Membership, first: int = 0) -> list[Call]:
    """Return random calls of a job.

    first: the number of the first operation within the job.
    """
    # More workers get smaller arrays, so that all schedules take about the same time.
    most = random.choice([1, 10, 60, 200]) * 3 // max(membership.world_size, 3) * min(membership.block_size, 20)
    calls = []
    for counter in range(first, first + random.choice([1, 1, 2, 4])):
        size = random.choice([0, 1, random.randint(0, most), most])
        dtype = random.choice([FLOATS[0], *FLOATS]) if random.random() < 0.7 else INT32
        wire: Wire = random.choice(WIRES) if dtype != np.int32 else "int32"
        residual = dtype == np.float32 and random.random() < 0.3
        average = dtype != np.int32 and not residual and random.random() < 0.3
        values = membership.block_size * values_per_word(wire)
        arrays = [random_array(random, size, values, dtype) for _ in range(membership.world_size)]
        reader = random.choice([-1, -1, random.randrange(membership.world_size)])
        calls.append(
            call(
                arrays,
                membership.block_size,
                wire,
                counter=counter,
                residual=residual,
                reader=reader,
                average=average,
            )
        )
    return calls
