# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed or stopped in the middle of operations: the others of their host do not wait for ever."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from udp_switch import udp_switch

from p4reduce.protocol import Membership, Worker
from p4reduce.transport import open_transport

from ..local.sums import SEED
from .killed_rank import HOSTS, SHAPE

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def reducing(timeout: float, size: int, *, fork: bool = False) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks, which reduce already. fork: each has a process that lives on when it is killed."""
    secret = secrets.randbits(63)
    as_switches_see_it = [
        Membership(rank=worker, world_size=2, abort_secret=secret, **SHAPE)  # type: ignore[arg-type]
        for worker in range(2)
    ]
    with udp_switch() as switch:
        switch.admit(as_switches_see_it[0])
        transport = open_transport("udp", switch.place)
        transport.send([Worker(member).hello(1) for member in as_switches_see_it])
        arguments = [str(each) for each in (secret, switch.place.udp_port, timeout, size, "fork" if fork else "")]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.killed_rank", str(rank), *arguments],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(len(HOSTS))
        ]  # fmt: skip
        try:
            for rank in ranks:
                assert said(rank) == "there"
            yield ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
            transport.close()


def said(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


@pytest.mark.parametrize("gone", [0, 2])
def test_who_is_killed_is_named_at_once(gone: int) -> None:
    with reducing(60, 50_000) as ranks:
        time.sleep(0.3)
        ranks[gone].kill()
        began = time.monotonic()
        others = [said(ranks[rank]) for rank in range(3) if rank != gone]
        assert time.monotonic() - began < 10
        assert others == [f"aborted {gone} rank {gone} of this host has ended"] * 2


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")
@pytest.mark.parametrize("gone", [0, 2])
def test_who_has_forked_is_named_as_soon(gone: int) -> None:
    """Though its child has all its sockets; and nobody is called again and again for one that has gone."""
    with reducing(60, 300, fork=True) as ranks:
        time.sleep(0.3)
        ranks[gone].kill()
        began = time.monotonic()
        others = [said(ranks[rank]) for rank in range(3) if rank != gone]
        assert time.monotonic() - began < 10
        assert others == [f"aborted {gone} rank {gone} of this host has ended"] * 2
        before = {rank: seconds_of(ranks[rank]) for rank in (0, 1) if rank != gone}
        time.sleep(1)
        assert all(seconds_of(ranks[rank]) - some < 0.3 for rank, some in before.items())


def seconds_of(rank: subprocess.Popen[str]) -> float:
    """Of a processor's time, that the process has used."""
    fields = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_at_whatever_moment(attempt: int) -> None:
    chance = random.Random(f"{SEED} {attempt}")
    gone = chance.randrange(3)
    with reducing(60, chance.choice([1, 300, 200_000, 9_000_000])) as ranks:
        time.sleep(chance.random())
        ranks[gone].kill()
        others = [said(ranks[rank]) for rank in range(3) if rank != gone]
        assert all(other.startswith(f"aborted {gone} ") for other in others), others


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1, 3])
def test_who_is_stopped_is_awaited(slow: int) -> None:
    """By others of its host; by other hosts, all ranks of its host are."""
    with reducing(5, 50_000) as ranks:
        time.sleep(0.3)
        ranks[slow].send_signal(signal.SIGSTOP)
        others = [said(ranks[rank]) for rank in range(4) if rank != slow]
        late = [other for other in others if other.startswith("late")]
        assert late
        named = (f"late ({slow},)", "late (0, 1, 2)", "aborted")
        assert all(other.startswith(named) for other in others), others
