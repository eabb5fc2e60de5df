# SPDX-License-Identifier: Apache-2.0
"""Whole systems over BF Runtime: controller and ranks as they are, `p4reduce switch`, and a device with our program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from tests.support.bfrt.stack import tofino_over_udp
from tests.support.cluster.calls import FORMS, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Setting
from tests.support.tofino.builds import PROFILES

pytestmark = [pytest.mark.p4c, pytest.mark.root, pytest.mark.slow]

CALLS = [
    Call((257,), dtype="int32", density=1.0),
    Call((3000,), density=0.1, seed=2),
    Call((1000,), density=0.0),
    Call((500,), op="average", seed=4),
]


@contextmanager
def setting(profile: str, loss: float) -> Iterator[Setting]:
    """Yield a setting whose switch runs the profile's program and loses this share of packets."""
    with tofino_over_udp(profile) as stack, stack.losing(loss) if loss else nullcontext():
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
