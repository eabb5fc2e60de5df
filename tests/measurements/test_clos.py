# SPDX-License-Identifier: Apache-2.0
"""Jobs over leaves and spines: of a few ranks, and of 128."""

from __future__ import annotations

import pytest

from p4reduce.local.host import digest
from tests.measurements.clos import measure


@pytest.mark.parametrize(
    ("ranks", "per_host", "target"),
    [
        pytest.param(8, 1, "native", marks=pytest.mark.slow),
        pytest.param(8, 1, "sim", marks=pytest.mark.slow),
        pytest.param(128, 2, "native", marks=[pytest.mark.slow, pytest.mark.serial]),
    ],
)
def test_sums_are_exact_and_loads_are_shared(ranks: int, per_host: int, target: str) -> None:
    if per_host > 1 and not digest():
        pytest.skip("this machine does not let processes share memory")
    plan = {"ranks": ranks, "per_host": per_host, "slots": 32, "numel": 1 << 14, "density": 1.0, "calls": 2}
    found = measure(plan, target=target, leaves=4, spines=2, processes=ranks // 4 if ranks < 9 else 8)
    assert (found["reported"], found["wrong"]) == (ranks, 0)
    assert found["workers"] == ranks // per_host
    one, other = found["uplink_shares"]
    assert one == pytest.approx(other, rel=0.25)
    assert 0.2 < one + other < 1.1  # a worker's packets include those that it has sent again, for its whole rack
