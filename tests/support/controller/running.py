# SPDX-License-Identifier: Apache-2.0
"""A controller on fake switches, and the event loop in which it runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.client import Assigned
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.observability.tracing import Traces
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.store.state import StateFile
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Gate
from p4reduce_controller.tenants.users import UsersFile
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import DEADLINE, Rank, hello_packet, ready
from tests.support.waiting import wait_until

T = TypeVar("T")
Started = TypeVar("Started")


class Loop:
    """An event loop in a thread. `run` runs a coroutine in it, `call` a function."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


class Running:
    """A controller on fake switches, and the ranks that join it.

    mute: ranks that send no HELLO.
    deaf: indices of switches that hear no HELLO.
    switch: the first of `switches`.
    """

    def __init__(
        self,
        loop: Loop,
        config: ServiceConfig | None = None,
        rejoin_time: float = 10.0,
        leave_grace: float = 20.0,
        slots: int = 16,
        switches: int = 1,
        state: Path | None = None,
        users: Path | None = None,
        audit: Path | None = None,
        traces: Traces | None = None,
    ) -> None:
        """Start the controller.

        state: the state file, which `start_again` needs after `crash`.
        users: the file of users.
        audit: the file of the audit log.
        """
        self._users = users
        self._audit = audit
        self._traces = traces
        self.loop = loop
        self.mute: set[int] = set()
        self.deaf: set[int] = set()
        self.ranks: list[Rank] = []
        self._config = config or ServiceConfig(listen="127.0.0.1:0")
        self._path = state
        self.switches = loop.call(lambda: [FakeSwitch(slots, number) for number in range(switches)])
        self.switch = self.switches[0]
        self._leave_grace = leave_grace
        loop.run(self._start(rejoin_time))
        self.address: str = self.controller.service.address

    async def _start(self, rejoin_time: float, early: Callable[[], Awaitable[object]] | None = None) -> None:
        self.state = StateFile(self._path) if self._path else None
        audit = Audit(self._audit)
        gate = Gate(UsersFile(self._users), audit) if self._users else None
        inventory = Inventory(self.switches)
        self.jobs = Jobs(
            inventory,
            JobOptions(rejoin_time=rejoin_time, leave_grace=self._leave_grace, returns=self._path is not None),
            tenancy=Tenancy(gate.users.book.policy) if gate else None,
        )
        self.controller = Controller(inventory, self.jobs, self._config, self.state, gate, audit, self._traces)
        self.controller.restore()
        self.controller.bind()
        if early is not None:
            await self.controller.service.listen()
            await early()
        for number, switch in enumerate(self.switches):
            await switch.start(self.controller.listener(number), 1.0)
        await self.controller.start()

    def crash(self) -> None:
        """Stop the controller abruptly, as if it were killed."""

        async def work() -> None:
            controller = self.controller
            controller.runner.supervisor.stopping.set()
            await controller.tasks.close()
            await controller.service._server.stop(None)

        self.loop.run(work())
        self.release()

    def release(self) -> None:
        """Close the state file, so that another controller can lock it."""
        if self.state is not None:
            self.state.close()

    def start_again(self, rejoin_time: float = 10.0) -> None:
        """Start a new controller at the same address."""
        self._config = replace(self._config, listen=self.address)
        self.loop.run(self._start(rejoin_time))

    @contextlib.contextmanager
    def waiting_for_a_switch(self) -> Iterator[None]:
        """Start a controller after `crash`, which listens during the block, but has no switches until its end."""
        self._config = replace(self._config, listen=self.address)
        listens, there = threading.Event(), self.loop.call(asyncio.Event)

        async def early() -> None:
            listens.set()
            await there.wait()

        started = asyncio.run_coroutine_threadsafe(self._start(10.0, early), self.loop.loop)
        try:
            assert listens.wait(DEADLINE)
            yield
        finally:
            self.loop.call(there.set)
            started.result(DEADLINE)

    def rank(self, rank: int, world_size: int, **options: Any) -> Rank:
        self.ranks.append(Rank(self.address, rank, world_size, send_hello=self._hello, **options))
        return self.ranks[-1]

    def job(self, world_size: int, **options: Any) -> list[Rank]:
        """Start a job, and return its ranks when they are ready."""
        ranks = [self.rank(rank, world_size, **options) for rank in range(world_size)]
        ready(ranks)
        return ranks

    def _hello(self, assigned: Assigned) -> None:
        if assigned.worker in self.mute:
            return
        packet = hello_packet(assigned)
        for number, switch in enumerate(self.switches):
            udp_port = 40000 + 1000 * number + assigned.worker
            sender = Endpoint(f"02:00:00:00:00:{assigned.worker:02x}", "127.0.0.1", udp_port)
            heard = Heard(1, sender, packet.job, packet.generation, packet.worker, packet.nonce)
            if number not in self.deaf:
                self.loop.call(switch.hear, heard)

    def ask(self, method: str, request: Any, token: str | None = None) -> Any:
        """Call a method of the control service with a user's token, and return the reply."""
        metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        with open_grpc_channel(self.address) as channel:
            return getattr(rpc.JobsStub(channel), method)(request, timeout=10.0, metadata=metadata)

    def look(self) -> pb.StatusReply:
        """Return the status, as an operator sees it."""
        return self.loop.run(self.controller.status())

    def used(self) -> int:
        """Return the number of slots in use, over all switches."""
        return self.loop.call(lambda: sum(pool.used for pool in self.jobs.pools))

    def close(self) -> None:
        for rank in self.ranks:
            rank.session.close()
            rank.outcome()
        self.loop.run(self.controller.close())
        self.release()


def advance(loop: Loop, controller: Controller, seconds: float) -> None:
    """Set the controller's clock forward, so that what is due within so many seconds is due now."""

    def work() -> None:
        controller.clock._stood_still -= seconds

    loop.call(work)


def stand_still(loop: Loop, controller: Controller, seconds: float) -> None:
    """Let the controller see what it would see if its process had been stopped for so many seconds."""
    loop.call(setattr, controller.clock, "_monotonic", lambda: time.monotonic() + seconds)


class Starter:
    """A factory that starts services in one event loop, and closes them in reverse order."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._closing = contextlib.ExitStack()

    def __call__(self, kind: Callable[..., Started], *arguments: Any, **options: Any) -> Started:
        started = kind(self._loop, *arguments, **options)
        self._closing.callback(started.close)
        return started

    def close(self) -> None:
        self._closing.close()


def leave(running: Running, ranks: list[Rank]) -> None:
    """Let all ranks leave, and wait until their slots are free. None of them may see an abort."""
    leaving = [running.loop.loop.run_in_executor(None, rank.session.leave) for rank in ranks]
    wait_until(lambda: all(one.done() for one in leaving), "all to leave")
    assert [rank.session.aborted for rank in ranks] == [None] * len(ranks)
    wait_until(lambda: running.used() == 0, "the slots to be freed")
