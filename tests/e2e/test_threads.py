# SPDX-License-Identifier: Apache-2.0
"""Ranks with several engine threads: every sum is held against the reference, bit for bit."""

from __future__ import annotations

import pytest

from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import over_udp, slots_used
from tests.support.waiting import wait_until

LARGE = [
    Call((70_001,), density=density, seed=seed, dtype=dtype, wire=wire)
    for seed, (dtype, wire, density) in enumerate(
        [("float32", "auto", 0.3), ("float32", "int8", 1.0), ("float16", "auto", 0.5), ("int32", "auto", 0.1)]
    )
]


@pytest.mark.parametrize(
    ("switches", "threads", "loss"),
    [
        pytest.param({}, 3, 0, marks=pytest.mark.slow),
        ({"aggregators": 2}, 3, 0),
        pytest.param({"aggregators": 2}, 2, 0.05, marks=pytest.mark.slow),
        pytest.param({"leaves": 2}, 2, 0, marks=pytest.mark.slow),
    ],
)
def test_every_shape_and_dtype(switches: dict[str, int], threads: int, loss: float) -> None:
    with over_udp(target="native", **switches) as stack:
        calls = SHAPES + LARGE
        at = stack.names[1:] if "leaves" in switches else ()
        with stack.losing(loss), stack.ranks(calls, job="shapes", threads=threads, slots=13, at=at) as ranks:
            stats = ranks.end_well(150, loss=loss > 0)[0]["stats"]
        assert stats["operations"] == sum(call.operations for call in calls) + 1  # the last is a barrier
        assert stats["threads"] == threads
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")
