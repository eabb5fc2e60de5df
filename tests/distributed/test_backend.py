# SPDX-License-Identifier: Apache-2.0
"""The backend under torchrun, on real switches."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack

from .conftest import RANKS, torchrun


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["c", "python"])
def test_every_collective(stack: Stack, engine: str) -> None:
    from .collectives import CHECKS

    events = torchrun("collectives.py", controller=stack.controller, environment={"P4REDUCE_BACKEND": engine})
    passed = sorted((event["rank"], event["passed"]) for event in events)
    assert passed == sorted((rank, function.__name__) for rank in range(RANKS) for function in CHECKS)
