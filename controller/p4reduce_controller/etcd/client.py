# SPDX-License-Identifier: Apache-2.0
"""The controller's client of etcd, by its v3 gRPC API.

Every call has a deadline. If a member does not answer, the call goes to the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio

from p4reduce.control.certificates import TlsFiles, channel_credentials
from p4reduce.control.channel import is_closed, is_tls_trouble
from p4reduce.control.diagnostics import of_grpc, of_tls
from p4reduce.control.grpc_channels import open_aio_channel
from p4reduce_controller.base.tasks import Interrupted, isolate_cancellation
from p4reduce_controller.etcd import rpc_pb2 as rpc

ATTEMPT_TIMEOUT = 0.7  # seconds for one member to answer, less than a lease lasts
CALL_TIMEOUT = 5.0  # seconds for any of them to answer
_RETRY_INTERVAL = 0.05  # seconds, after no member has answered
_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),  # the operator's own store is trusted
]
_REFUSALS = (  # every other member would give the same answer
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)

_Reply = TypeVar("_Reply")


class EtcdError(Exception):
    """An error: etcd has refused a request."""


class EtcdUnavailable(EtcdError):
    """An error: no member has answered in time. Whether the request was carried out is unknown."""


class NoSuchLease(EtcdUnavailable):
    """An error: the lease has expired. Callers treat it like EtcdUnavailable, and try again."""


class Etcd:
    """A cluster, by the addresses of its members. Create and close it on one event loop."""

    def __init__(self, members: Sequence[str], tls: TlsFiles | None = None) -> None:
        """Create the client, without connecting. `members`: HOST:PORT of each. `tls`: None means plain text."""
        self.members = tuple(members)
        self._tls = tls
        self._pem = tls.current() if tls is not None else None
        self._channels = self._opened()
        self._closing: set[asyncio.Future[Any]] = set()
        self._preferred = 0

    def __str__(self) -> str:
        return f"etcd at {', '.join(self.members)}"

    async def close(self) -> None:
        await asyncio.gather(*self._closing, *[channel.close() for channel in self._channels])

    async def range(self, key: str, end: str = "", *, timeout: float = CALL_TIMEOUT) -> rpc.RangeResponse:
        """Return the key, or all keys from it up to `end`, by a linearizable read."""
        request = rpc.RangeRequest(key=key.encode(), range_end=end.encode())
        return await self._ask("KV/Range", request, rpc.RangeResponse, timeout)

    async def transact(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """Do the transaction. If a member does it but its answer is lost, it is sent again, so it may be done twice."""
        return await self._ask("KV/Txn", request, rpc.TxnResponse, CALL_TIMEOUT)

    async def grant(self, seconds: int) -> rpc.LeaseGrantResponse:
        request = rpc.LeaseGrantRequest(TTL=seconds)
        return await self._ask("Lease/LeaseGrant", request, rpc.LeaseGrantResponse, CALL_TIMEOUT)

    async def revoke(self, lease: int, *, timeout: float = CALL_TIMEOUT) -> None:
        with suppress(NoSuchLease):
            await self._ask("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), rpc.LeaseRevokeResponse, timeout)

    async def keep_alive(self, lease: int, *, timeout: float = CALL_TIMEOUT) -> int:
        """Renew the lease, and return the seconds that it lasts from now on; 0 if it has expired."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)

        async def once() -> AsyncIterator[rpc.LeaseKeepAliveRequest]:
            yield request
            await asyncio.sleep(2 * ATTEMPT_TIMEOUT)  # keep the stream of requests open until the answer has come

        async def one(channel: grpc.aio.Channel) -> rpc.LeaseKeepAliveResponse:
            method = channel.stream_stream(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
                response_deserializer=rpc.LeaseKeepAliveResponse.FromString,
            )
            call = method(once(), timeout=ATTEMPT_TIMEOUT)
            try:
                async for reply in call:
                    assert isinstance(reply, rpc.LeaseKeepAliveResponse)
                    return reply
                raise Interrupted("it ended without an answer")
            finally:
                call.cancel()

        return int((await self._try_each(one, "Lease/LeaseKeepAlive", timeout)).TTL)

    async def _ask(self, method: str, request: Any, reply: type[_Reply], timeout: float) -> _Reply:
        async def one(channel: grpc.aio.Channel) -> _Reply:
            call = channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=reply.FromString,  # type: ignore[attr-defined]
            )
            said: _Reply = await call(request, timeout=ATTEMPT_TIMEOUT)
            return said

        answer: _Reply = await self._try_each(one, method, timeout)
        return answer

    async def _try_each(self, ask: Callable[[grpc.aio.Channel], Any], method: str, timeout: float) -> Any:
        """Ask one member after the other, beginning with the one that answered last."""
        self._read_again()
        deadline = time.monotonic() + timeout
        troubles: dict[str, str] = {}
        while True:
            for _ in self.members:
                at = self._preferred
                try:
                    return await isolate_cancellation(ask(self._channels[at]))
                except grpc.aio.AioRpcError as error:
                    text = " ".join((error.details() or error.code().name).split())
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        raise NoSuchLease(f"{self}: {method}: {text}") from None
                    if error.code() in _REFUSALS:
                        raise EtcdError(f"{self}: {method} is refused: {text}") from None
                    troubles[self.members[at]] = (
                        f"no answer within {ATTEMPT_TIMEOUT:g} s" if "Deadline" in text else text
                    )
                except Interrupted as error:
                    troubles[self.members[at]] = str(error)
                self._preferred = (at + 1) % len(self.members)
                if time.monotonic() >= deadline:
                    raise EtcdUnavailable(self._explain(troubles))
            await asyncio.sleep(_RETRY_INTERVAL)

    def _explain(self, troubles: dict[str, str]) -> str:
        tls_texts = {member: of_tls(text, "--store-ca") for member, text in troubles.items()}
        said = "; ".join(f"{member}: {tls_texts[member] or of_grpc(text)}" for member, text in troubles.items())
        advice = ""
        if self._tls is not None and any("TSI_" in one or is_tls_trouble(one) for one in troubles.values()):
            check = (
                "; check that etcd uses TLS, the name in its certificate, --store-ca, and whether it asks for "
                "--store-cert"
            )
            advice = "" if any(tls_texts.values()) else check
        elif self._tls is None and any(map(is_closed, troubles.values())):
            advice = "; if etcd uses TLS, give --store-ca"
        return f"etcd does not answer ({said}){advice}"

    def _read_again(self) -> None:
        """Open new connections if certificates have changed."""
        pem = self._tls.current() if self._tls is not None else None
        if pem is None or self._pem is None or pem.version == self._pem.version:
            return
        for channel in self._channels:
            closing = asyncio.ensure_future(
                channel.close(grace=2 * ATTEMPT_TIMEOUT)
            )  # pending requests are still answered
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._pem = pem
        self._channels = self._opened()

    def _opened(self) -> list[grpc.aio.Channel]:
        if self._pem is None:
            return [open_aio_channel(member, options=_OPTIONS) for member in self.members]
        how = channel_credentials(self._pem)
        return [open_aio_channel(member, how, _OPTIONS) for member in self.members]
