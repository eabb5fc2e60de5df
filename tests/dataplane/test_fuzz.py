# SPDX-License-Identifier: Apache-2.0
"""Random traffic must come out of every data plane the same, byte for byte; BMv2 is the one they are held to."""

from __future__ import annotations

import pytest

from tests.support.dataplane.fuzz import run
from tests.support.dataplane.switch import OUTCOME_NAMES
from tests.support.dataplane.targets import Unavailable

pytestmark = [pytest.mark.bmv2, pytest.mark.root]


@pytest.mark.parametrize("target", ["sim", "native", "native-eth"])
@pytest.mark.parametrize(
    ("frames", "seed"),
    [
        (500, 1),
        (500, 2),
        pytest.param(10_000, 3, marks=pytest.mark.slow),
        pytest.param(10_000, 4, marks=pytest.mark.slow),
    ],
)
def test_as_bmv2(target: str, frames: int, seed: int) -> None:
    try:
        report = run(target, "bmv2", frames, seed, progress=print)
    except Unavailable as missing:
        pytest.skip(str(missing))
    print(report)
    assert report.difference is None, str(report)
    assert report.frames == frames
    # The traffic is worth something: every kind of outcome has happened.
    if frames >= 10_000:
        assert len(report.outcomes) == len(OUTCOME_NAMES)
