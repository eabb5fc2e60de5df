# SPDX-License-Identifier: Apache-2.0
"""Limits on the memory that an allreduce takes, with a real switch, controller and ranks."""

import pytest

from p4reduce.fastpath.library import LibraryError, library
from tests.measurements.memory import limit, measure

MIB = 256


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "every"), [("c", 1), ("c", 1000), ("python", 1000)])
def test_little_besides_the_tensor(backend: str, every: int) -> None:
    if backend == "c":
        try:
            library()
        except LibraryError as error:
            pytest.skip(str(error))
    rows = measure(MIB, every, backend)
    assert len(rows) == 2
    for row in rows:
        assert row["backend"] == backend
        assert row["wrong"] == 0
        assert row["before"] > MIB << 20
        assert row["added"] <= limit(MIB << 20), f"{row['added'] / 2**20:.1f} MiB"
