# SPDX-License-Identifier: Apache-2.0
"""The benchmark of small operations."""

from __future__ import annotations

import pytest

from tests.measurements import small


@pytest.mark.slow
def test_small_operations_are_timed_and_right() -> None:
    rows = small.measure([16, 300], "float32", 2, 20)
    assert [row["numel"] for row in rows] == [16, 300]
    for row in rows:
        assert row["wrong"] == 0
        assert {name: len(seconds) for name, seconds in row["seconds"].items()} == {
            "p4reduce": 20, "p4reduce, async": 20, "gloo": 20,
        }  # fmt: skip
    assert small.table(rows).count("\n") == 3
