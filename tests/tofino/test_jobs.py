# SPDX-License-Identifier: Apache-2.0
"""Controller and ranks as they are, on a switch that runs the program for Tofino: every bit is as in the reference."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from p4reduce_bench.processes.children import Child
from tests.dataplane.targets import Unavailable
from tests.e2e.conftest import Setting
from tests.e2e.rank import Call
from tests.e2e.stack import Stack
from tests.e2e.test_stack import finish

from .builds import PROFILES, build

pytestmark = [pytest.mark.p4c, pytest.mark.slow]

CALLS = [
    Call((257,), dtype="int32", density=1.0),
    Call((3000,), density=0.1, seed=2),
    Call((1000,), density=0.0),
    Call((500,), op="average", seed=4),
]


class TofinoStack(Stack):
    """A stack whose switch is one of ours."""

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        return super().start(name, "tests.tofino" if name == "switch" else module, *arguments, environment=environment)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("loss", [0, 0.02])
def test_a_job(profile: str, loss: float) -> None:
    try:
        program = build(profile)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with TofinoStack("sim", ["1=udp:127.0.0.1:0"], options=["--pipeline", str(program)]) as stack, stack.losing(loss):
        finish(Setting(stack), CALLS, "tofino", world_size=3, slots=8)
