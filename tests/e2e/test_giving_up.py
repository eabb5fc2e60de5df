# SPDX-License-Identifier: Apache-2.0
"""A rank that gives up and keeps its communicator, or closes it in the middle: the others do not wait for it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.errors import CollectiveTimeout, JobAborted
from p4reduce.join import joining
from p4reduce.local.host import digest
from tests.support.cluster.stack import Stack

WAYS = {
    "packets": ((0, 1, 2), {"local": "off"}),
    "threads": ((0, 1, 2), {"local": "off", "threads": 2}),
    "memory": ((0, 0, 0), {"local": "auto"}),
    "hosts": ((0, 0, 1), {"local": "auto"}),
}
SOON_S = 8.0


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    hosts, options = WAYS[request.param]
    here = digest()
    if not here and options["local"] == "auto":
        pytest.skip("this machine does not let processes share memory")
    monkeypatch.setattr(joining, "host_digest", lambda _: f"{threading.current_thread().name} {here}"[:64])
    return hosts, options


@contextlib.contextmanager
def joined(stack: Stack, job: str, hosts: Sequence[int], **options: Any) -> Iterator[list[Communicator]]:
    with contextlib.ExitStack() as undo:
        ranks: list[Communicator | None] = [None] * len(hosts)

        def join(rank: int) -> None:
            where = {"controller": stack.controller, "job": job, "rank": rank, "world_size": len(hosts)}
            ranks[rank] = Communicator(**where, timeout=60, **options)

        threads = [threading.Thread(target=join, args=(rank,), name=f"host {host}") for rank, host in enumerate(hosts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found = [rank for rank in ranks if rank is not None]
        for communicator in found:
            undo.callback(communicator.abort)
        assert len(found) == len(hosts)
        yield found


def how_it_fails(communicator: Communicator, timeout: float = 60) -> tuple[Exception, float]:
    began = time.monotonic()
    with pytest.raises((CollectiveTimeout, JobAborted)) as caught:
        communicator.allreduce(np.ones(50_000, np.float32), timeout=timeout)
    return caught.value, time.monotonic() - began


def test_who_has_failed_ends_the_job_though_it_stays(native_udp_stack: Stack, way: Any) -> None:
    hosts, options = way
    with joined(native_udp_stack, "gives up", hosts, **options) as ranks, ThreadPoolExecutor() as threads:
        patient = threads.submit(how_it_fails, ranks[0])
        error, _ = how_it_fails(ranks[1], timeout=1)
        assert isinstance(error, CollectiveTimeout), error
        for error, seconds in (patient.result(30), how_it_fails(ranks[2])):
            assert seconds < SOON_S, error
            assert isinstance(error, JobAborted), error
            assert error.rank == 1, error
            # The controller says so, or the switch, in its name.
            assert re.search("rank 1 (has failed: allreduce|has left it)", str(error)), error


def test_who_closes_in_the_middle_is_named(native_udp_stack: Stack, way: Any) -> None:
    hosts, options = way
    with joined(native_udp_stack, "closes", hosts, **options) as ranks, ThreadPoolExecutor() as threads:
        waiting = threads.submit(how_it_fails, ranks[0])
        ranks[1].allreduce_async(np.ones(50_000, np.float32))
        began = time.monotonic()
        ranks[1].close()
        assert time.monotonic() - began < SOON_S
        for error, seconds in (waiting.result(30), how_it_fails(ranks[2])):
            assert seconds < SOON_S, error
            assert isinstance(error, JobAborted), error
            assert error.rank == 1, error
