# SPDX-License-Identifier: Apache-2.0
"""Tensors that the kernel does not let other ranks read, or map: sums are the reference's, and it is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from p4reduce.protocol import Operation
from tests.support.hostlib.local_engines import Ranks, ranks
from tests.support.hostlib.memory import PLACEMENTS, secret
from tests.support.hostlib.sums import SEED, SIZES, check_residuals

LARGE = (17 << 20) + 5  # more values than all windows have that there are at once


def fallbacks(job: Ranks) -> list[int]:
    return [engine.stats.local_fallbacks for engine in job.engines]


def test_large_tensors_and_others_between_them() -> None:
    arrays = [np.random.default_rng(SEED + rank).integers(-9, 9, LARGE, np.int32) for rank in range(2)]
    with ranks(2) as job:
        for placement in (PLACEMENTS["one rank's"], PLACEMENTS["copied"], PLACEMENTS["the second half"]):
            given = [placement(rank, array) for rank, array in enumerate(arrays)]
            job.reduce([Operation(array) for array in given])
            for array in given:
                np.testing.assert_array_equal(array, arrays[0] + arrays[1])
        assert fallbacks(job) == [2, 2]
        assert [engine.stats.operations for engine in job.engines] == [3, 3]


@pytest.mark.parametrize("wire", ["int32", "int8"])
def test_residuals(wire: str) -> None:
    with ranks(2) as job:
        check_residuals(job, SIZES[-1], 0.9, wire, placement=PLACEMENTS["all"])  # type: ignore[arg-type]
        assert fallbacks(job) == [1, 1]


def test_small_tensors_need_none() -> None:
    """Every rank's values are copied anyway."""
    with ranks(2) as job:
        job.reduce([Operation(secret(np.ones(5000, np.float32))) for _ in range(2)])
        assert fallbacks(job) == [0, 0]


@pytest.mark.parametrize("refused", ["read", "map", "map at one rank", "map without reading"])
def test_what_a_kernel_may_refuse_from_some_time_on(refused: str) -> None:
    """The ranks run in a process of their own, because a filter of system calls is for a whole process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.local.refusing", refused], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skip"):
        pytest.skip(done.stdout)
    counts = json.loads(done.stdout)
    assert counts[0] > 0
    assert (counts[1] == 0) == (refused == "map at one rank")
