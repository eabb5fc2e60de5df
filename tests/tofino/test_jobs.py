# SPDX-License-Identifier: Apache-2.0
"""Controller and ranks as they are, on a switch that runs the program for Tofino: every bit is as in the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import pytest

from p4reduce_bench.processes.children import Child
from tests.support.cluster.calls import FORMS, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Setting, Stack
from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import PROFILES, build

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
        return super().start(
            name, "tests.support.tofino" if name == "switch" else module, *arguments, environment=environment
        )


@contextmanager
def setting(profile: str, loss: float) -> Iterator[Setting]:
    """Yield a setting whose switch runs the profile's program and loses this share of packets."""
    try:
        program = build(profile)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with (
        TofinoStack("sim", ["1=udp:127.0.0.1:0"], options=["--pipeline", str(program)]) as stack,
        stack.losing(loss) if loss else nullcontext(),
    ):
        yield Setting(stack)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("loss", [0, 0.02])
def test_a_job(profile: str, loss: float) -> None:
    with setting(profile, loss) as lossy:
        finish(lossy, CALLS, "tofino", world_size=3, slots=8)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("loss", [0, 0.02])
def test_every_form_of_every_dtype(profile: str, loss: float) -> None:
    """This is the test that tests/e2e/test_stack.py has for the other targets."""
    with setting(profile, loss) as lossy:
        pytest.importorskip("torch", reason="needs torch, for bfloat16")
        finish(lossy, FORMS, "forms", world_size=3, slots=8)
