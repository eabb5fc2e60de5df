# SPDX-License-Identifier: Apache-2.0
"""The shipped build is fresh, and builds with other parameters work."""

from __future__ import annotations

import filecmp

import pytest

from tests.support.dataplane.fuzz import compare
from tests.support.dataplane.jobs import Job, Round
from tests.support.dataplane.p4runtime import Program
from tests.support.dataplane.switch import SHIPPED, Switch
from tests.support.scripts import Build

pytestmark = pytest.mark.p4c

OTHERS = [
    {"LANES": 1, "BLOCK_SIZE": 32},
    {"LANES": 8, "BLOCK_SIZE": 64},
    {"LANES": 2, "BLOCK_SIZE": 128},
    {"LANES": 1, "BLOCK_SIZE": 32, "SLOTS": 16},
]


@pytest.mark.parametrize("name", ["p4reduce.json", "p4info.txtpb"])
def test_what_is_shipped_is_a_fresh_build(build: Build, name: str) -> None:
    """`make p4` brings it up to date."""
    assert filecmp.cmp(build({}) / name, SHIPPED / name, shallow=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p4reduce.json", "p4info.txtpb"])
def test_what_is_shipped_for_larger_links_is_a_fresh_build(build: Build, name: str) -> None:
    assert filecmp.cmp(build({"LANES": 8, "BLOCK_SIZE": 256}) / name, SHIPPED / "jumbo" / name, shallow=False)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", OTHERS, ids=str)
def test_other_parameters(build: Build, parameters: dict[str, int]) -> None:
    """The program compiles with them, P4Info has them, and jobs run on it."""
    folder = build(parameters)
    program = Program(folder / "p4info.txtpb", folder / "p4reduce.json")
    told = {"LANES": program.lanes, "BLOCK_SIZE": program.block_size, "SLOTS": program.halves // 2}
    assert {name: told[name] for name in parameters} == parameters
    with Switch("sim", folder) as switch:
        switch.own_address()
        job = Job(switch, 3).start()
        for seq in range(2, 6):
            Round(job, seq).run().replay(0)
        switch.reset()


def test_the_fuzzer_sees_a_difference(build: Build) -> None:
    """The same data plane twice, with programs that differ in one limit."""
    with Switch("sim") as left, Switch("sim", build({"MAX_GROWTH": 256})) as right:
        report = compare(left, right, 2000, 1, print)
    assert report.difference is not None
    assert (report.difference.left == "  nothing") != (report.difference.right == "  nothing")
