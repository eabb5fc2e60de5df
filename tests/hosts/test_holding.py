# SPDX-License-Identifier: Apache-2.0
"""The leader of ranks that share a stream holds operations for all of them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout
from p4reduce.protocol import Operation
from tests.support.hostlib.holding import change, hold
from tests.support.hostlib.hosts_job import Job, job
from tests.support.hostlib.sums import check_random_sums
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.waiting import pass_time, wait_until

SIZES = (0, 1, 65, 3000, 20_000)
BUFFERS = 4  # hostlib/csrc/shm/staging.h


def test_slots_change_between_operations() -> None:
    with contextlib.closing(UdpSwitch()) as switch, job((0, 0, 1, 1, 2), switch) as running:
        leaders = [running.engines[rank] for rank in running.memberships[0].leaders]
        for number, slots in enumerate((8, 1, 3, 8, 2)):
            change(switch, leaders, slots)
            check_random_sums(running, 3, number, sizes=SIZES)
            running.reduce(ones(running, 20_000))
            assert [engine.take_most_slots() for engine in running.engines] == [slots, 0, slots, 0, slots]


def ones(running: Job, size: int = 100) -> list[Operation]:
    """Return one operation for each rank."""
    return [Operation(np.ones(size, np.float32)) for _ in running.engines]


def test_followers_do_not_hold() -> None:
    with job((0, 0, 1)) as running:
        [told] = hold([running.engines[1]])
        check_random_sums(running, 2, 1, sizes=SIZES)
        running.engines[1].go_on(1, 100)
        check_random_sums(running, 2, 2, sizes=SIZES)
        assert told.states == []


@pytest.mark.parametrize("limited", [0, 1])
def test_who_waits_says_why(limited: int) -> None:
    """The rank that times out first says why it waits, even if it is a follower."""
    with job((0, 0, 1)) as running:
        hold([running.engines[0]])[0].wait(0, quiet=True)
        pending = [
            running.begin(rank, operation, 1.5 if rank == limited else 60.0)
            for rank, operation in enumerate(ones(running))
        ]
        error = pending[limited].wait()
        assert isinstance(error, CollectiveTimeout)
        assert f"the controller has paused operations {'to change' if limited else 'for'}" in str(error)
        for each in pending[:2]:
            assert each.wait() is not None


def test_what_is_under_way_ends_first() -> None:
    """An operation of several parts."""
    size = (8 << 20) + 70_000
    with job((0, 1)) as running:
        values = np.zeros(size, np.float32)
        values[::70_000] = 1
        pending = [running.begin(0, Operation(values.copy()))]
        wait_until(lambda: running.engines[0].stats.packets_sent > 0, "the operation to begin")
        told = hold(running.engines, 1)
        told[0].wait(1, quiet=False)
        told[1].wait(0, quiet=True)
        later = [running.begin(0, Operation(np.ones(100, np.float32)))]
        pending.append(running.begin(1, Operation(values.copy())))
        assert [each.wait() for each in pending] == [None, None]
        assert told[0].wait(1, quiet=True) == told[1].wait(1, quiet=True)
        for engine in running.engines:
            engine.go_on(0, 0)
        later.append(running.begin(1, Operation(np.ones(100, np.float32))))
        assert [each.wait() for each in later] == [None, None]


def test_what_is_held_back_does_not_begin() -> None:
    """Earlier operations wait for room in the ranks' shared memory, and begin while later ones are held."""
    before = BUFFERS + 1
    with job((0, 0, 1)) as running:
        operations = list(zip(*(ones(running) for _ in range(before + 1)), strict=True))
        pending = [running.begin(0, operation) for operation in operations[0][:before]]
        leaders = [running.engines[rank] for rank in (0, 2)]
        told = hold(leaders, before)
        told[0].wait(before, quiet=False)
        later = [running.begin(0, operations[0][before])]
        for rank in (1, 2):
            pending += [running.begin(rank, operation) for operation in operations[rank][:before]]
            later.append(running.begin(rank, operations[rank][before]))
        assert [each.wait() for each in pending] == [None] * 3 * before
        assert told[0].wait(before, quiet=True) == told[1].wait(before, quiet=True)
        assert [operation.done for each in operations for operation in each[before:]] == [False] * 3
        for leader in leaders:
            leader.go_on(0, 0)
        assert [each.wait() for each in later] == [None] * 3


def test_what_is_held_no_longer_is_not_said_to_be() -> None:
    with job((0, 0, 1)) as running:
        leaders = [running.engines[rank] for rank in (0, 2)]
        for told in hold(leaders):
            told.wait(0, quiet=True)
        pending = [running.begin(rank, operation) for rank, operation in enumerate(ones(running))]
        pass_time(0.03)
        for leader in leaders:
            leader.go_on(0, 0)
        assert [each.wait() for each in pending] == [None] * 3
        error = running.begin(1, Operation(np.ones(100, np.float32)), 0.5).wait()
        assert isinstance(error, CollectiveTimeout)
        assert "waiting for rank 0 on this host" in str(error)
        assert error.awaited == (0,)
