# SPDX-License-Identifier: Apache-2.0
"""A controller's service on an event loop of its own, since its clients block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from p4reduce.control import diagnostics
from p4reduce_controller.jobs import compacting
from tests.support.controller.bench import Bench
from tests.support.controller.changing import Changing
from tests.support.controller.running import Loop, Running, Starter
from tests.support.dataplane.targets import TARGETS, Target, Unavailable


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 120.0))
    return True


@pytest.fixture(autouse=True)
def _fakes_have_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the names of fake switches as addresses, which settings would refuse."""
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
def start(loop: Loop) -> Iterator[Starter]:
    """Return a starter of services, all of which end with the test."""
    starter = Starter(loop)
    yield starter
    starter.close()


@pytest.fixture
def running(start: Starter) -> Running:
    return start(Running)


@pytest.fixture(scope="module", params=["sim", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Yield a switch that runs the P4 program."""
    try:
        target = TARGETS[request.param]()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with target:
        yield target


@pytest.fixture
def bench(start: Starter, target: Target) -> Bench:
    return start(Bench, target)


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def either_bench(request: pytest.FixtureRequest, start: Starter, target: Target) -> Bench:
    """Return a bench with addresses of either family, one after the other."""
    return start(Bench, target, ipv6=request.param)


@pytest.fixture
def changing(start: Starter) -> Changing:
    return start(Changing)


@pytest.fixture(scope="module")
def few_slots_do() -> Iterator[None]:
    """Let slots of running jobs move for any job that waits, however few slots that gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacting, "MIN_SLOTS", 1)
        yield
