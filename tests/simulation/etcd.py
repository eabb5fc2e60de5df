# SPDX-License-Identifier: Apache-2.0
"""etcd in virtual time: one member that never fails, behind a network that may lose it, as `etcd.client.Etcd`.

A request that is held back on its way may be carried out long after its caller has given up.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from typing import Any

from p4reduce_controller.etcd.client import CALL_TIMEOUT, EtcdUnavailable
from tests.simulation import threads
from tests.simulation.network import Wire, host_of
from tests.simulation.world import World
from tests.support.controller.fake_etcd import FakeEtcd

ADDRESS = "10.8.0.1:2379"


class Member(FakeEtcd):
    """The keys and leases, by the world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__()

    @property  # type: ignore[override]
    def now(self) -> float:
        return self._world.now

    @now.setter
    def now(self, _: float) -> None: ...


class Etcd:
    """A client."""

    def __init__(self, members: Sequence[str], tls: Any = None) -> None:
        del tls
        self.process = threads.here()
        net = self.process.world.net
        self._member: Member = net.etcd
        self._there = Wire(net, self.process.host, host_of(members[0]))
        self._back = Wire(net, host_of(members[0]), self.process.host)

    def __str__(self) -> str:
        return "etcd"

    async def close(self) -> None: ...

    async def range(self, key: str, end: str = "", *, timeout: float = CALL_TIMEOUT) -> Any:
        return await self._ask(timeout, lambda member: member.range(key, end))

    async def transact(self, request: Any) -> Any:
        return await self._ask(CALL_TIMEOUT, lambda member: member.transact(request))

    async def grant(self, seconds: int) -> Any:
        return await self._ask(CALL_TIMEOUT, lambda member: member.grant(seconds))

    async def revoke(self, lease: int, *, timeout: float = CALL_TIMEOUT) -> None:
        await self._ask(timeout, lambda member: member.revoke(lease))

    async def keep_alive(self, lease: int, *, timeout: float = CALL_TIMEOUT) -> int:
        return int(await self._ask(timeout, lambda member: member.keep_alive(lease)))

    async def _ask(self, timeout: float, work: Callable[[Member], Any]) -> Any:
        answer: asyncio.Future[Any] = self.process.loop.create_future()

        def arrive() -> None:
            try:
                work(self._member).send(None)
            except StopIteration as done:
                reply = copy.deepcopy(done.value)
                self._back.send(lambda: self.process.soon(lambda: answer.done() or answer.set_result(reply)))

        self._there.send(arrive)
        try:
            return await asyncio.wait_for(answer, timeout)
        except asyncio.TimeoutError:
            raise EtcdUnavailable(f"no answer within {timeout:g} s") from None
