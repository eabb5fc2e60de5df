# SPDX-License-Identifier: Apache-2.0
"""Checks of the sums that a job's engines compute of random tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.protocol import Operation
from p4reduce.protocol.blocks import ZERO, Blocks
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import BFLOAT16, narrowed
from p4reduce.protocol.numbers import WIRES, Wire, numbers_for, reference_allreduce

Array = npt.NDArray[Any]

SEED = int(os.environ.get("P4REDUCE_SEED", "1"))
SIZES = (0, 1, 63, 64, 65, 5000, 8192, 8193, 20_000, 40_000, 131_072, 300_017)
DTYPES = (*2 * (np.dtype(np.float32),), np.dtype(np.int32), np.dtype(np.float16), BFLOAT16)
DENSITIES = (0.0, 0.01, 0.2, 0.5, 0.9, 1.0)


class Job(Protocol):
    """The ranks of a job in this process."""

    operations: int

    @property
    def engines(self) -> Sequence[object]: ...

    def reduce(self, operations: Sequence[Operation]) -> None: ...


def random_array(random: np.random.Generator, dtype: np.dtype[Any], size: int, density: float) -> Array:
    """Return an array with some blocks of zeros, and now and then NaN, infinities and subnormal numbers."""
    there = np.repeat(random.random(size // 64 + 1) < density, 64)[:size]
    if dtype == np.int32:
        return np.where(there, random.integers(-(2**31), 2**31, size), 0).astype(np.int32)
    zero = random.choice([0.0, -0.0])
    values = np.where(there, random.standard_normal(size) * 10.0 ** random.integers(-6, 4, size), zero)
    if size and random.random() < 0.4:
        values[random.integers(size, size=3)] = random.choice([np.nan, np.inf, -np.inf, 1e-42])
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
        return narrowed(values, dtype) if dtype != np.float32 else values


def copied(rank: int, array: Array) -> Array:  # noqa: ARG001
    return array.copy()


def check_random_sums(
    job: Job,
    count: int,
    seed: int,
    block_size: int = 64,
    sizes: Sequence[int] = SIZES,
    placement: Callable[[int, Array], Array] = copied,
) -> None:
    """Run random allreduce operations, and compare the sums with the reference, bit by bit.

    job: a job that has had no operations but those of this module.
    placement: a function that copies a rank's values to the array that the rank reduces.
    """
    random = np.random.default_rng(seed)
    for number in range(count):
        dtype = DTYPES[random.integers(len(DTYPES))]
        wire: Wire = "int32" if dtype == np.int32 else random.choice(WIRES)
        size, density = int(random.choice(sizes)), float(random.choice(DENSITIES))
        op = "avg" if dtype != np.int32 and random.random() < 0.3 else "sum"
        arrays = [random_array(random, dtype, size, density) for _ in job.engines]
        operations = [
            Operation(placement(rank, array), wire=wire, reduce_op=op, divisor=len(arrays) if op == "avg" else 1)
            for rank, array in enumerate(arrays)
        ]
        called = fingerprint(job.operations, operations[0].numbers, op, size)
        job.reduce(operations)
        with np.errstate(all="ignore"):
            expected = reference_allreduce(arrays, op, block_size, wire, called)
        for rank, operation in enumerate(operations):
            assert operation.data.tobytes() == expected.tobytes(), (seed, number, rank, operation, wire, density)


def check_residuals(
    job: Job, size: int, density: float, wire: Wire, placement: Callable[[int, Array], Array] = copied
) -> None:
    """Assert that residuals are the rounding errors of a rank's own non-zero blocks.

    placement: a function that copies a rank's values to the array that the rank reduces.
    """
    random = np.random.default_rng(SEED)
    arrays = [random_array(random, np.dtype(np.float32), size, density) for _ in job.engines]
    residuals = [np.full(size, 7, np.float32) for _ in arrays]
    operations = [
        Operation(placement(rank, array), wire=wire, residual=residual)
        for rank, (array, residual) in enumerate(zip(arrays, residuals, strict=True))
    ]
    called = fingerprint(job.operations, operations[0].numbers, "sum", size)
    job.reduce(operations)
    numbers = numbers_for(np.dtype(np.float32), len(arrays), wire)
    each = 64 * numbers.per_word
    exponents = np.max([Blocks(array, each).scan() for array in arrays], axis=0)
    for rank, array in enumerate(arrays):
        expected = np.full(size, 7, np.float32)
        own = np.flatnonzero(Blocks(array, each).scan() != ZERO).tolist()
        if own:
            values, agreed = Blocks(array, each).gather(own), exponents[own].tolist()
            with np.errstate(all="ignore"):
                left = values - numbers.dequantise(numbers.quantise(values, agreed, own, called | rank), agreed)
            Blocks(expected, each).scatter(own, np.where(np.isfinite(left), left, 0))
        assert residuals[rank].tobytes() == expected.tobytes()
