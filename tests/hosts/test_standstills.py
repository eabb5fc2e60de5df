# SPDX-License-Identifier: Apache-2.0
"""Who stands still in the midst of its part of an operation is awaited, and not who waits for it as well."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout, JobAborted
from p4reduce.protocol import Operation

from .job import job
from .missing_pages import half_missing

COUNT = 1 << 20


@pytest.mark.parametrize("impatient", [0, 1])
def test_who_stands_still_while_it_scans_is_awaited(impatient: int) -> None:
    """By the leader, and by others of its host, who could take the leader for it."""
    with job((0, 0, 0, 1)) as running:
        with half_missing(COUNT) as still:
            limits = [60.0] * 4
            limits[impatient] = 1.0
            tensors = [still if rank == 2 else np.zeros(COUNT, np.float32) for rank in range(4)]
            endings = [running.begin(rank, Operation(tensor), limits[rank]) for rank, tensor in enumerate(tensors)]
            error = endings[impatient].wait()
            assert isinstance(error, CollectiveTimeout)
            assert error.awaited == (2,)
            assert str(error).endswith("waiting for rank 2 on this host")
            told = endings[1 - impatient].wait()
            assert isinstance(told, JobAborted)
            assert told.rank == impatient
        assert isinstance(endings[2].wait(), JobAborted)


def test_what_is_next_is_not_what_is_awaited() -> None:
    """An operation that waits for another host, while a rank of this one has not called what comes after it."""
    with job((0, 0, 1)) as running:
        first = [
            running.begin(rank, Operation(np.ones(100, np.float32)), limit) for rank, limit in enumerate((1.5, 60))
        ]
        running.begin(0, Operation(np.ones(100, np.float32)))
        error = first[0].wait()
    assert isinstance(error, CollectiveTimeout)
    assert error.awaited == (2,), error


def test_a_switch_is_not_blamed_for_a_standstill_of_ones_own() -> None:
    with job((0, 1)) as running:
        with half_missing(COUNT) as still:
            ending = running.begin(0, Operation(still), 1.0)
            time.sleep(4)
        error = ending.wait()
    assert isinstance(error, CollectiveTimeout)
    said = re.search(r"(\d+\.\d) s.*; this rank's own process was stopped for (\d+\.\d) s$", str(error))
    assert said is not None, error
    assert float(said[1]) < 2 < float(said[2])
