# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzzer, and what it would find."""

from __future__ import annotations

import asyncio

import pytest

from p4reduce_controller.jobs.gathering import Gathering
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.p4runtime.cpu_channel import CpuChannel
from p4reduce_controller.switches.pools import SlotPool

from .fuzz import Found, Fuzzer


def fuzz(seed: int, seconds: float) -> Fuzzer:
    fuzzer = Fuzzer(seed)
    asyncio.run(fuzzer.run(seconds))
    return fuzzer


def test_nothing_is_found() -> None:
    fuzzer = fuzz(1, 2.0)
    assert sum(fuzzer.steps.values()) > 100
    assert fuzzer.words.assigned


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a bug")


@pytest.mark.slow
@pytest.mark.parametrize(("where", "method"), [(Jobs, "leave"), (Gathering, "on_hello"), (CpuChannel, "on_packet")])
def test_an_error_that_nobody_expects_is_found(monkeypatch: pytest.MonkeyPatch, where: type, method: str) -> None:
    monkeypatch.setattr(where, method, broken)
    with pytest.raises(Found, match="a bug"):
        fuzz(1, 30.0)


@pytest.mark.slow
def test_slots_that_are_not_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotPool, "give_back", lambda *_: None)
    monkeypatch.setattr("tests.controller.fuzz.SETTLE_S", 3.0)
    with pytest.raises(Found, match="after all sessions have ended"):
        fuzz(1, 30.0)
