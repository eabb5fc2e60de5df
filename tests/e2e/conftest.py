# SPDX-License-Identifier: Apache-2.0
"""The stacks that the tests run on: each is started once for all tests, as their jobs do not meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from p4reduce.local.host import digest
from tests.support.cluster.c_program import program
from tests.support.cluster.stack import Setting, Stack

from .ways import ONE_SWITCH, STACKS, WAYS

__all__ = ["program"]  # a fixture


@pytest.fixture(scope="session")
def stacks() -> Iterator[Callable[[str], Stack]]:
    """Yield a function that returns the stack of a name, and starts it at the first call."""
    with contextlib.ExitStack() as undo:
        yield cache(lambda name: undo.enter_context(STACKS[name]()))


@pytest.fixture
def udp_stack(stacks: Callable[[str], Stack]) -> Stack:
    return stacks("sim")


@pytest.fixture
def native_udp_stack(stacks: Callable[[str], Stack]) -> Stack:
    return stacks("native")


@pytest.fixture(params=ONE_SWITCH)
def setting(request: pytest.FixtureRequest, stacks: Callable[[str], Stack]) -> Setting:
    """Return a setting: a stack with one switch, and one of the ways to reach it."""
    name, options = WAYS[request.param]
    if options.get("transport") == "scapy":
        pytest.importorskip("scapy", reason="needs scapy")
    if options.get("local") == "auto" and not digest():
        pytest.skip("this machine does not let processes share memory")
    stack = stacks(name)
    if "at" in options:
        options = {**options, "at": [stack.names[switch] for switch in options["at"]]}
    return Setting(stack, options)


@pytest.fixture(params=["c", "python"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let ranks use this engine, and return its name."""
    monkeypatch.setenv("P4REDUCE_BACKEND", request.param)
    return str(request.param)
