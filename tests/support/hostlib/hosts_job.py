# SPDX-License-Identifier: Apache-2.0
"""A job over several pretended hosts in one process.

Each rank has an engine. The ranks of a host share one stream to the model switch.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce.local.engine import SharingEngine
from p4reduce.protocol import Membership, Worker
from p4reduce.transport import open_transport

from .local_engines import NoTransport, Ranks, ranks
from .udp_switch import UdpSwitch


class Job(Ranks):
    def __init__(self, memberships: Sequence[Membership], switch: UdpSwitch) -> None:
        self.switch = switch
        with ThreadPoolExecutor(len(memberships)) as pool:
            super().__init__(list(pool.map(self.start, memberships)), memberships)

    def start(self, membership: Membership) -> SharingEngine:
        leads = membership.leader == membership.rank
        transport = open_transport("udp", self.switch.endpoint) if leads else NoTransport()
        if leads:
            transport.send([self._hello(membership)])
        return SharingEngine(
            transport, membership, switch=str(self.switch.endpoint), name=f"rank {membership.rank}", timeout=10
        )

    @staticmethod
    def _hello(membership: Membership) -> bytes:
        """Return the HELLO from which the model switch learns a worker's address."""
        return Worker(one_a_host(membership, membership.worker)).hello(1)


def one_a_host(membership: Membership, worker: int) -> Membership:
    """Return the membership as the switch sees it: each host is one worker."""
    names = ("job", "generation", "slots", "lanes", "block_size", "first_seq", "abort_secret")
    shape = {name: getattr(membership, name) for name in names}
    return Membership(rank=worker, world_size=len(membership.leaders), **shape)


def memberships(hosts: Sequence[int], **fields: Any) -> list[Membership]:
    """Return the memberships of a new job's ranks.

    hosts: the host of each rank.
    """
    shape = {"job": 1, "generation": 1, "slots": 8, "lanes": 4, "block_size": 64, "first_seq": 0}
    shape |= {"abort_secret": secrets.randbits(64), **fields}
    return [Membership(rank=rank, world_size=len(hosts), hosts=tuple(hosts), **shape) for rank in range(len(hosts))]


@contextlib.contextmanager
def job(hosts: Sequence[int], switch: UdpSwitch | None = None, **fields: Any) -> Iterator[Job]:
    """Run a job during the block.

    hosts: the host of each rank.
    """
    switch = switch or UdpSwitch()
    everyone = memberships(hosts, **fields)
    switch.admit(one_a_host(everyone[0], 0))
    running = None
    try:
        running = Job(everyone, switch)
        yield running
    finally:
        for engine in running.engines if running is not None else ():
            engine.close(P4ReduceError("the test is over"))
        switch.close()


def together(hosts: Sequence[int], block_size: int = 64) -> contextlib.AbstractContextManager[Ranks]:
    """Run the ranks of a job during the block. On a single host, their engines send no packets."""
    return job(hosts, block_size=block_size) if len(set(hosts)) > 1 else ranks(len(hosts), block_size)
