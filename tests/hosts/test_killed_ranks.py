# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stop, stand still or fail: the others of their host do not wait for ever, and name them."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout, JobAborted, P4ReduceError
from p4reduce.local.engine import SharingEngine, host_rendezvous_name
from p4reduce.protocol import Membership, Operation
from p4reduce.transport import open_transport
from tests.support.hostlib.hosts_job import job, memberships
from tests.support.hostlib.local_engines import NoTransport, without_standstill
from tests.support.hostlib.reducing_ranks import ReducingRank, reducing
from tests.support.hostlib.sums import SEED
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.waiting import wait_until

from .missing_pages import half_missing

HOSTS = (0, 0, 0, 1)
FORKED = pytest.param(True, marks=pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open"))


@pytest.mark.parametrize("fork", [False, FORKED], ids=["alone", "forked"])
@pytest.mark.parametrize("gone", [0, 2])
def test_who_is_killed_is_named_at_once(gone: int, fork: bool) -> None:
    """It is named even if a child of it has all its sockets. Other ranks do not spin on a rank that is gone."""
    with reducing(HOSTS, 300 if fork else 50_000, every=5000, fork=fork) as ranks:
        time.sleep(0.3)
        ranks[gone].kill()
        began = time.monotonic()
        others = [ranks[rank].says() for rank in range(3) if rank != gone]
        assert time.monotonic() - began < 10
        assert others == [f"aborted {gone} rank {gone} of this host has ended"] * 2
        assert [ranks[rank].says() for rank in (0, 1) if rank != gone] == ["kept"] * (2 - (gone == 0))
        before = {rank: seconds_of(ranks[rank]) for rank in (0, 1) if rank != gone}
        time.sleep(1)
        assert all(seconds_of(ranks[rank]) - some < 0.3 for rank, some in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_have_their_tensors_to_themselves(how: signal.Signals, attempt: int) -> None:
    """A rank may be killed or stopped at any moment. A stopped rank goes on after the others have given up.

    Then it can no longer write to their tensors.
    """
    chance = random.Random(f"{SEED} {how} {attempt}")
    with reducing((0, 0, 0), 1 << 21) as ranks:
        time.sleep(0.02 + 0.1 * chance.random())
        gone = chance.choice(ranks)
        gone.send_signal(how)
        time.sleep(0.03 * chance.random())
        others = [rank for rank in ranks if rank is not gone]
        for rank in others:
            rank.fail()
        if how == signal.SIGSTOP:
            time.sleep(0.1)
            gone.send_signal(signal.SIGCONT)
        for rank in others:
            rank.says()
            assert rank.says() == "kept"


def seconds_of(rank: ReducingRank) -> float:
    """Return the seconds of processor time that the process has used."""
    fields = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(8))
def test_at_whatever_moment(attempt: int) -> None:
    chance = random.Random(f"{SEED} {attempt}")
    gone = chance.randrange(3)
    with reducing(HOSTS, chance.choice([1, 300, 200_000, 9_000_000]), every=5000) as ranks:
        time.sleep(chance.random())
        ranks[gone].kill()
        others = [ranks[rank].says() for rank in range(3) if rank != gone]
        assert all(other.startswith(f"aborted {gone} ") for other in others), others


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1, 3])
def test_who_is_stopped_is_awaited(slow: int) -> None:
    """Other ranks of its host wait for it, and other hosts wait for all ranks of its host."""
    with reducing(HOSTS, 50_000, every=5000, timeout=5) as ranks:
        time.sleep(0.3)
        ranks[slow].send_signal(signal.SIGSTOP)
        others = [ranks[rank].says() for rank in range(4) if rank != slow]
        late = [other for other in others if other.startswith("late")]
        assert late
        named = (f"late ({slow},)", "late (0, 1, 2)", "aborted")
        assert all(other.startswith(named) for other in others), others


def heard(first: int, error: Exception) -> BaseException | None:
    """Fail one rank with this error, and return the error that the other rank of its host gets from it.

    The other rank's own controller says nothing.
    """
    with job((0, 0, 1)) as running:
        pending = running.begin(1 - first, Operation(np.ones(1000, np.float32)))
        running.engines[first].fail(error)
        return pending.wait()


@pytest.mark.parametrize("first", [0, 1])
def test_who_went_is_known_whoever_hears_of_it_first(first: int) -> None:
    error = heard(first, JobAborted("rank 2 was lost", rank=2))
    assert isinstance(error, JobAborted)
    assert (error.rank, str(error)) == (2, "rank 2 was lost")
    assert heard(first, JobAborted("nobody is to blame")).rank is None  # type: ignore[union-attr]


COUNT = 1 << 20


@pytest.mark.parametrize("impatient", [0, 1])
def test_who_stands_still_while_it_scans_is_awaited(impatient: int) -> None:
    """The leader names that rank, and so do others of its host, which might blame the leader instead."""
    with job((0, 0, 0, 1)) as running:
        with half_missing(COUNT) as still:
            limits = [60.0] * 4
            limits[impatient] = 1.0
            tensors = [still if rank == 2 else np.zeros(COUNT, np.float32) for rank in range(4)]
            pending = [running.begin(rank, Operation(tensor), limits[rank]) for rank, tensor in enumerate(tensors)]
            error = pending[impatient].wait()
            assert isinstance(error, CollectiveTimeout)
            assert error.awaited == (2,)
            assert without_standstill(error).endswith("waiting for rank 2 on this host")
            told = pending[1 - impatient].wait()
            assert isinstance(told, JobAborted)
            assert told.rank == impatient
        assert isinstance(pending[2].wait(), JobAborted)


def test_what_is_next_is_not_what_is_awaited() -> None:
    """An operation that waits for another host, while a rank of this one has not called what comes after it."""
    with job((0, 0, 1)) as running:
        first = [
            running.begin(rank, Operation(np.ones(100, np.float32)), limit) for rank, limit in enumerate((1.5, 60))
        ]
        running.begin(0, Operation(np.ones(100, np.float32)))
        error = first[0].wait()
    assert isinstance(error, CollectiveTimeout)
    assert error.awaited == (2,), error


def test_a_switch_is_not_blamed_for_a_standstill_of_ones_own() -> None:
    with job((0, 1)) as running:
        with half_missing(COUNT) as still:
            pending = running.begin(0, Operation(still), 1.0)
            time.sleep(4)
        error = pending.wait()
    assert isinstance(error, CollectiveTimeout)
    said = re.search(r"(\d+\.\d) s.*; this rank's own process was stopped for (\d+\.\d) s$", str(error))
    assert said is not None, error
    assert float(said[1]) < 2 < float(said[2])


def connect(membership: Membership) -> socket.socket:
    """Connect like a rank that is stopped before it has said which rank it is."""
    name = f"\0{host_rendezvous_name(membership)}"
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def connected() -> bool:
        return silent.connect_ex(name) == 0

    wait_until(connected, "somebody to listen")
    return silent


@pytest.mark.parametrize("all_come", [True, False])
def test_who_is_stopped_while_it_comes_keeps_no_other_waiting(all_come: bool) -> None:
    everyone = memberships((0, 0, 0))
    with contextlib.closing(UdpSwitch()) as switch, ThreadPoolExecutor(3) as pool:

        def start(membership: Membership) -> SharingEngine:
            transport = open_transport("udp", switch.endpoint) if membership.rank == 0 else NoTransport()
            # The leader times out first, and tells the others why.
            limit = 3 if membership.rank == 0 else 20
            return SharingEngine(transport, membership, switch="it", timeout=20 if all_come else limit)

        first = pool.submit(start, everyone[0])
        with connect(everyone[0]):
            began = time.monotonic()
            ranks = [first, *(pool.submit(start, member) for member in everyone[1 : 3 if all_come else 2])]
            if all_come:
                for rank in ranks:
                    rank.result().close(P4ReduceError("the test is over"))
                assert time.monotonic() - began < 15
                return
            said = [rank.exception() for rank in ranks]
    assert all(isinstance(error, CollectiveTimeout) for error in said)
    assert str(said[0]) == "not all ranks of this host have set up shared memory within 3 s: rank 2 has not"
    assert str(said[1]) == str(said[0]).replace("3 s", "20 s")
