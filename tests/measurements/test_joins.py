# SPDX-License-Identifier: Apache-2.0
"""The measurement of joins."""

from __future__ import annotations

from tests.measurements.joins import Found, measure, table, widths_for


def test_a_job_is_measured() -> None:
    found = measure(40)
    assert (found.ranks, found.switches) == (40, 3)
    assert found.join_s > 0
    assert found.threads > 1
    assert found.rss > 1 << 20


def test_trees_have_room() -> None:
    assert [widths_for(ranks) for ranks in (31, 32, 961, 962, 4096)] == [[], [2], [31], [2, 16], [5, 27]]


def test_a_row() -> None:
    row = table([Found(4096, 141, 12.34, 5.0, 3.0, 300 << 20, 12, 0.1, 300_000, 0.2, 400_000, 200_000)])
    assert "| 4,096 | 141 | 12.3 s | 5.0 s | 3.0 s | 300 MiB | 12 | 100 ms, 0.30 MB | 200 ms" in row
