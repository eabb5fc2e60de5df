# SPDX-License-Identifier: Apache-2.0
"""A faulty member of a job never gets a wrong sum accepted, by the P4 program or by the C code."""

from __future__ import annotations

from types import ModuleType

import pytest

from p4reduce_targets import native, sim
from tests.support.dataplane.direct import Direct
from tests.support.dataplane.faulty_members import never_another_sum
from tests.support.dataplane.switch import SHIPPED


@pytest.mark.parametrize("tree", [False, True], ids=["one switch", "tree"])
@pytest.mark.parametrize(
    ("target", "faults"), [(native, 400), pytest.param(sim, 150, marks=pytest.mark.slow)], ids=["native", "sim"]
)
def test_never_another_sum(target: ModuleType, faults: int, tree: bool) -> None:
    """The test calls the data plane directly, which allows many more faults than real ports."""
    switch = Direct("direct", target.load((SHIPPED / "p4reduce.json").read_bytes()), SHIPPED)
    switch.own_address()
    never_another_sum(switch, faults, tree=tree)
