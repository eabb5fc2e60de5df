# SPDX-License-Identifier: Apache-2.0
"""A fake etcd in memory: keys, revisions and leases, with a clock that a test sets."""

from __future__ import annotations

from p4reduce_controller.etcd import rpc_pb2 as rpc
from p4reduce_controller.etcd.client import EtcdUnavailable


class FakeEtcd:
    """The methods of `Etcd` that `Lease` calls.

    away: calls fail, as without a connection.
    deaf: calls take effect, but fail as if the answer were lost.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.away = self.deaf = False
        self.revision = 1
        self.keys: dict[str, rpc.KeyValue] = {}
        self.transactions: list[rpc.TxnRequest] = []
        self._leases: dict[int, tuple[int, float]] = {}

    def clock(self) -> float:
        return self.now

    async def range(self, key: str, end: str = "", *, timeout: float = 5.0) -> rpc.RangeResponse:  # noqa: ARG002
        self._begin()
        return self._found(key, end)

    async def transact(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        self._begin()
        self.transactions.append(request)
        holds = all(map(self._holds, request.compare))
        self.revision += 1
        reply = rpc.TxnResponse(succeeded=holds, header=rpc.ResponseHeader(revision=self.revision))
        for operation in request.success if holds else request.failure:
            if operation.HasField("request_put"):
                put = operation.request_put
                made = self._created(put.key.decode()) or self.revision
                new = rpc.KeyValue(key=put.key, value=put.value, lease=put.lease, create_revision=made)
                new.mod_revision = self.revision
                self.keys[put.key.decode()] = new
            elif operation.HasField("request_delete_range"):
                self.keys.pop(operation.request_delete_range.key.decode(), None)
            else:
                found = self._found(operation.request_range.key.decode(), "")
                reply.responses.append(rpc.ResponseOp(response_range=found))
        self._end()
        return reply

    async def grant(self, seconds: int) -> rpc.LeaseGrantResponse:
        self._begin()
        number = len(self._leases) + 1
        self._leases[number] = (seconds, self.now + seconds)
        self._end()
        return rpc.LeaseGrantResponse(ID=number, TTL=seconds)

    async def revoke(self, lease: int, *, timeout: float = 5.0) -> None:  # noqa: ARG002
        self._begin()
        self._leases[lease] = (0, 0.0)
        self._expire()

    async def keep_alive(self, lease: int, *, timeout: float = 5.0) -> int:  # noqa: ARG002
        self._begin()
        seconds, until = self._leases[lease]
        if until <= self.now:
            return 0
        self._leases[lease] = (seconds, self.now + seconds)
        self._end()
        return seconds

    def _begin(self) -> None:
        if self.away:
            raise EtcdUnavailable("it is not connected")
        self._expire()

    def _end(self) -> None:
        if self.deaf:
            raise EtcdUnavailable("its answer was lost")

    def _expire(self) -> None:
        over = {number for number, (_, until) in self._leases.items() if until <= self.now}
        self.keys = {key: one for key, one in self.keys.items() if one.lease not in over}

    def _holds(self, one: rpc.Compare) -> bool:
        if one.target == rpc.Compare.MOD:
            found = self.keys.get(one.key.decode())
            return (found.mod_revision if found is not None else 0) == one.mod_revision
        return self._created(one.key.decode()) == one.create_revision

    def _created(self, key: str) -> int:
        return self.keys[key].create_revision if key in self.keys else 0

    def _found(self, key: str, end: str) -> rpc.RangeResponse:
        within = [one for name, one in sorted(self.keys.items()) if name == key or (end and key <= name < end)]
        return rpc.RangeResponse(header=rpc.ResponseHeader(revision=self.revision), kvs=within)
