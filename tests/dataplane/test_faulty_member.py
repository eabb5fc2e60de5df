# SPDX-License-Identifier: Apache-2.0
"""A faulty member of a job never gets a wrong sum accepted, on any data plane and with its real ports."""

from __future__ import annotations

import pytest

from tests.support.dataplane.faulty_members import never_another_sum
from tests.support.dataplane.switch import Switch


@pytest.mark.parametrize("tree", [False, True], ids=["one switch", "tree"])
def test_never_another_sum(switch: Switch, tree: bool) -> None:
    if not switch.guards_keys:
        pytest.skip("the program for Tofino takes other keys of a worker that is counted already")
    never_another_sum(switch, 100, tree=tree)
