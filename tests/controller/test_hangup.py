# SPDX-License-Identifier: Apache-2.0
"""SIGHUP while a controller starts: it counts as soon as it serves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from p4reduce_controller.etcd.lease import Lease
from p4reduce_controller.service import run
from p4reduce_controller.settings.settings import Settings, load
from p4reduce_controller.standby import leader_election

ONE = {"name": "one", "switch": "127.0.0.1:1", "address": ["10.0.0.1"]}
TWO = {"name": "two", "switch": "127.0.0.1:2", "address": ["10.0.0.2"]}


class Over(Exception):
    """The failure that ends the service."""


class Served:
    """A controller that is over at once. `read`: names of switches, each time that settings were read again."""

    def __init__(self) -> None:
        self.read: list[list[str]] = []
        self.failed = asyncio.Event()
        self.failed.set()
        self.failure = Over()
        self.keeps_jobs = True
        self.operations = self

    def read_again(self, again: Callable[[], Settings]) -> None:
        self.read.append([one["name"] for one in again().switches])


def settings(*switches: dict[str, Any], store: str = "") -> Settings:
    return load(None, {"switches": list(switches), "store": store})


@pytest.fixture
def hangups() -> Iterator[list[int]]:
    """Yield the hangups that no other handler takes, and which would end the process."""
    missed: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: missed.append(number))
    yield missed
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("early", [True, False, "blocked"])
def test_a_controller_reads_its_settings_again_when_it_serves(
    monkeypatch: pytest.MonkeyPatch, hangups: list[int], early: bool | str
) -> None:
    served = []
    if early == "blocked":  # as the command line has it while it imports
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # for the process, another thread would take it

    @asynccontextmanager
    async def starting(*_: Any) -> AsyncIterator[Served]:
        if early is True:
            os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        served.append(Served())
        yield served[0]

    monkeypatch.setattr(run, "running", starting)
    with pytest.raises(Over):
        asyncio.run(run.run(settings(ONE), 1.0, lambda _: None, lambda: settings(ONE, TWO)))
    assert (served[0].read, hangups) == ([["one", "two"]] if early else [], [])


@pytest.mark.parametrize("early", [True, False])
def test_one_of_two_has_what_was_read_while_its_turn_began(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    class StoredState:
        async def fetch(self) -> None: ...

    async def turn() -> Served:
        served = Served()
        mine = leader_election.LeaderElection(
            settings(ONE, store="etcd://127.0.0.1:3/x"), 1.0, lambda _: None, lambda *_: None
        )

        @asynccontextmanager
        async def starting(begun: Settings, *_: Any) -> AsyncIterator[Served]:
            assert begun.switches == [ONE]
            if early:
                mine.read_again(lambda: settings(ONE, TWO))
            yield served

        monkeypatch.setattr(leader_election, "running", starting)
        monkeypatch.setattr(mine, "_state", lambda _: StoredState())

        class Ours:
            term, maybe_lost_leadership = 1, None

        with pytest.raises(Over):
            await mine._lead(cast(Lease, Ours()))
        await mine._etcd.close()
        mine._entrance.close()
        return served

    assert asyncio.run(turn()).read == ([["one", "two"]] if early else [])


IMPORTING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Hangup(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "p4reduce_controller.commands.cli":
            os.kill(os.getpid(), signal.SIGHUP)

sys.meta_path.insert(0, Hangup())
sys.argv = ["p4reduce", "controller", "--config", "no-such-file"]
from p4reduce.commands.entry import main
main()
"""


def test_a_controller_that_is_being_imported_is_not_ended() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "no-such-file" in done.stderr
