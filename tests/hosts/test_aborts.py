# SPDX-License-Identifier: Apache-2.0
"""The end of a job, as ranks of a host tell each other of it."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.errors import JobAborted, P4ReduceError
from p4reduce.protocol import Operation

from .job import job

HOSTS = (0, 0, 1)


def heard(first: int, error: Exception) -> BaseException | None:
    """What the other rank of the host hears of it, whose own controller says nothing."""
    with job(HOSTS) as running:
        ending = running.begin(1 - first, Operation(np.ones(1000, np.float32)))
        running.engines[first].fail(error)
        return ending.wait()


@pytest.mark.parametrize("first", [0, 1])
def test_who_went_is_known_whoever_hears_of_it_first(first: int) -> None:
    error = heard(first, JobAborted("rank 2 was lost", rank=2))
    assert isinstance(error, JobAborted)
    assert (error.rank, str(error)) == (2, "rank 2 was lost")
    assert heard(first, JobAborted("nobody is to blame")).rank is None  # type: ignore[union-attr]


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_fails_by_itself_is_the_one_that_went(first: int) -> None:
    error = heard(first, P4ReduceError("no memory"))
    assert isinstance(error, JobAborted)
    assert (error.rank, str(error)) == (first, f"rank {first} has failed: no memory")
