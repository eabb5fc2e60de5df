# SPDX-License-Identifier: Apache-2.0
"""The simulator's times, compared with those of ns-3 on the same network with the same packets."""

from __future__ import annotations

import pytest

from p4reduce_simulator import Link, Network, Workload, clos, star
from tests.support.ns3 import both, program

SLOW = Link(rate=10**9, delay=5e-6, queue=0)


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(star(8, SLOW), id="star"),
        pytest.param(star(8, Link(rate=10**11, delay=1e-6, queue=0)), id="fast"),
        pytest.param(clos(8, 2, edge=SLOW), id="tree"),
        pytest.param(clos(8, 2, 2, edge=SLOW), id="clos"),
    ],
)
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_times_are_those_of_ns3(network: Network, density: float) -> None:
    program()
    ours, theirs, _ = both(network, Workload(numel=1 << 18, density=density))
    assert ours == pytest.approx(theirs, rel=0.01)
