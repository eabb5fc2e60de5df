# SPDX-License-Identifier: Apache-2.0
"""A controller's service on an event loop of its own, since its clients block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from p4reduce.control import diagnostics
from p4reduce_controller.jobs import compacting
from tests.support.controller.bench import Bench
from tests.support.controller.changing import Changing
from tests.support.controller.running import Loop, Running
from tests.support.dataplane.targets import TARGETS, Target, Unavailable


@pytest.fixture(autouse=True)
def _fakes_have_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The targets of fake switches are names, which settings would refuse."""
    check = diagnostics.check_address

    def checked(what: str, text: str, *rest: Any, **more: Any) -> None:
        if not text.startswith("fake"):
            check(what, text, *rest, **more)

    monkeypatch.setattr(diagnostics, "check_address", checked)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def running(loop: Loop) -> Iterator[Running]:
    running = Running(loop)
    yield running
    running.close()


@pytest.fixture(scope="module", params=["sim", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A switch that runs the P4 program."""
    try:
        target = TARGETS[request.param]()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with target:
        yield target


@pytest.fixture
def bench(loop: Loop, target: Target) -> Iterator[Bench]:
    bench = Bench(loop, target)
    yield bench
    bench.close()


@pytest.fixture
def changing(loop: Loop) -> Iterator[Changing]:
    changing = Changing(loop)
    yield changing
    changing.close()


@pytest.fixture(scope="module")
def few_slots_do() -> Iterator[None]:
    """Slots of running jobs move for any job that waits, however few slots that gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacting, "LEAST", 1)
        yield
