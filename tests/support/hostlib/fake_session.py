# SPDX-License-Identifier: Apache-2.0
"""A fake controller and its sessions in this process, without gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Assigned
from p4reduce.control.messages import MISMATCH
from p4reduce.errors import JobAborted, JoinError
from p4reduce.protocol import Membership

from .udp_switch import UdpSwitch, members


class FakeController:
    """A controller that admits ranks to jobs on a `UdpSwitch`. An instance replaces the class `Session`."""

    def __init__(self, switch: UdpSwitch, **shape: int) -> None:
        """Create a controller.

        shape: the slots, lanes and block_size of every job.
        """
        self.switch = switch
        self.shape = shape
        self.in_memory = False
        """Whether the ranks of a job may share memory. All of them are on this host."""
        self.lock = threading.Lock()
        self.jobs: dict[str, FakeJob] = {}

    def __call__(self, address: str, *, on_abort: Callable[[JobAborted], None], **options: Any) -> FakeSession:
        return FakeSession(self, address, on_abort, options)

    def admit(self, name: str, world_size: int) -> FakeJob:
        with self.lock:
            if name not in self.jobs or self.jobs[name].is_over():
                memberships = members(world_size, job=len(self.jobs) + 1, **self.shape)
                self.switch.admit(memberships[0])
                self.jobs[name] = FakeJob(memberships)
            return self.jobs[name]


class FakeJob:
    def __init__(self, memberships: list[Membership]) -> None:
        self.memberships = memberships
        self.sessions: dict[int, FakeSession] = {}
        self.left: set[int] = set()
        self.closed: set[int] = set()

    def is_over(self) -> bool:
        return len(self.closed) == len(self.memberships)


class FakeSession:
    def __init__(
        self,
        controller: FakeController,
        address: str,
        on_abort: Callable[[JobAborted], None],
        options: dict[str, Any],
    ) -> None:
        self.controller = controller
        self.address = address
        self.options = options
        self.on_abort = on_abort
        self.aborted: JobAborted | None = None
        self.failed = False
        self.job: FakeJob | None = None
        self.rank = -1
        self.timeout = 0.0
        self.holder: Any = None
        self.mover: Any = None
        self.holds: object = None

    def join(self, job: str, rank: int, world_size: int, *, timeout: float, **options: object) -> Assigned:
        self.holds = options.get("holds")
        self.job = self.controller.admit(job, world_size)
        self.job.sessions[rank] = self
        self.rank, self.timeout = rank, timeout
        m = self.job.memberships[rank]
        endpoint = self.controller.switch.endpoint
        return Assigned(
            job=m.job, generation=m.generation, worker=rank, slots=m.slots, lanes=m.lanes, block_size=m.block_size,
            first_seq=m.first_seq, hello_nonce=rank + 2**40,
            aggregators=[pb.Endpoint(ip=endpoint.ip, udp_port=endpoint.udp_port, mac=endpoint.mac)],
        )  # fmt: skip

    def wait_ready(self, hello: Callable[[], None], **_: object) -> pb.Ready:
        hello()
        assert self.job is not None
        for rank, membership in enumerate(self.job.memberships):
            if not self.controller.switch.heard(membership, rank, rank + 2**40, self.timeout):
                raise JoinError(f"rank {rank} never came")
        hosts = (0,) * len(self.job.memberships) if self.controller.in_memory else ()
        return pb.Ready(aggregators=[0], hosts=hosts)

    def abort(self, rank: int) -> None:
        """Abort the job, and tell every session that `rank` has gone."""
        assert self.job is not None
        for session in self.job.sessions.values():
            session.aborted = JobAborted(f"rank {rank} went", rank=rank)
            session.on_abort(session.aborted)

    def report(self, figures: object) -> None:
        """Ignore the report."""

    def hold_with(self, holder: Any) -> None:
        """Store the holder, which tests call."""
        self.holder = holder

    def move_with(self, mover: Any) -> None:
        """Store the mover, which tests call."""
        self.mover = mover

    def ask(self, half: int) -> None:
        """Ignore the question: no answer comes."""

    def fail(self, why: str, rank: int | None = None, *, mismatch: bool = False) -> None:
        """End the job for all other ranks, too."""
        assert self.job is not None
        if any(session.aborted or session.failed for session in self.job.sessions.values()):
            return
        self.failed = True
        blamed = self.rank if rank is None else rank
        text = why if mismatch else f"rank {blamed} has failed: {why}"
        for session in self.job.sessions.values():
            if session is not self:
                session.aborted = JobAborted(text, rank=blamed, reason=MISMATCH if mismatch else "WORKER_LOST")
                session.on_abort(session.aborted)

    def await_abort(self, timeout: float) -> None:
        """Return at once, since `abort` and `fail` have already notified every session."""

    def leave(
        self, *, on_heard: Callable[[], None] = lambda: None, is_last: bool = True, lingers: bool = False
    ) -> None:
        del is_last, lingers
        assert self.job is not None
        self.job.left.add(self.rank)
        on_heard()

    def close(self) -> None:
        if self.job is not None:
            self.job.closed.add(self.rank)
