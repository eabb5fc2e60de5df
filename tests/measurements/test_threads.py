# SPDX-License-Identifier: Apache-2.0
"""The benchmark of threads."""

from __future__ import annotations

import pytest

from tests.measurements.threads import Found, Setup, measure, row, table


def test_a_turn_is_measured() -> None:
    found = measure(Setup(engine=2, switch=2), 1 << 16, 16, 2)
    assert found.packets_per_s > 0
    assert found.rank_ns > 0


def test_a_row_has_medians_and_what_would_be_the_most() -> None:
    turns = [Found(rate, 500.0, 250.0) for rate in (3e6, 1e6, 2e6)]
    made = row(Setup(engine=1, switch=2), turns)
    assert (made["packets_per_s"], made["min"], made["max"]) == (2e6, 1e6, 3e6)
    assert made["with_cores"] == pytest.approx(4e6)  # of two workers, less than the switch's 8 million
    assert "| 1 | 2 | 2,000,000 (1,000,000 to 3,000,000) | 500 | 250 | 4,000,000 |" in table([made])
