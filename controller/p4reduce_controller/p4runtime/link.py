# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime connection to a switch, as its primary controller."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import finsy as fy
import grpc.aio
from finsy.proto import U128, p4r, p4r_grpc

from p4reduce.control.certificates import TlsFiles, channel_credentials
from p4reduce.control.channel import is_closed, is_tls_trouble
from p4reduce.control.diagnostics import of_grpc, of_tls
from p4reduce.control.grpc_channels import open_aio_channel
from p4reduce_controller.base.tasks import Interrupted, first_of, isolate_cancellation
from p4reduce_controller.p4runtime.election import in_words
from p4reduce_controller.switches.aggregator import Superseded, SwitchError, SwitchUnavailable

log = logging.getLogger(__name__)

_OPEN_TIMEOUT = 10.0  # seconds for a switch to answer a new connection
_INSTALL_TIMEOUT = 60.0  # seconds to install a program: a chip is reset, and its registers are cleared
_HEARTBEAT_INTERVAL = 2.0  # seconds between two queries that find out whether the switch still answers
_LOW_IDS = 1 << 16  # ids up to about this only serve to look at a switch, and are below controllers' ids
_CONNECTING = "connecting"
_OPTIONS = (("grpc.max_metadata_size", 64 * 1024),)  # the errors of a request's updates are in metadata
_BATCH = 256  # updates per write, well below gRPC's limit of 4 MiB per message

Entry = fy.P4TableEntry | fy.P4MulticastGroupEntry | fy.P4CounterEntry
_T = TypeVar("_T")
_E = TypeVar("_E", fy.P4TableEntry, fy.P4MulticastGroupEntry, fy.P4CounterEntry, fy.P4DirectCounterEntry)
PacketHandler = Callable[[bytes, Callable[[], dict[str, Any]]], None]  # the second decodes the packet's metadata


@dataclass(frozen=True)
class MastershipState:
    """The mastership of a switch: the primary's election id, or if there is none, the highest that it remembers."""

    election_id: int
    has_primary: bool


@dataclass(eq=False, repr=False)
class Link:
    """One connection, which is opened once and closed once.

    After `close`, everything that waits fails with SwitchUnavailable, and so does every later call.

    `errors`: counts failed calls by gRPC status code.
    """

    target: str
    device_id: int
    schema: fy.P4Schema
    on_packet: PacketHandler
    tls: TlsFiles | None = None
    errors: Counter[str] = field(default_factory=Counter)
    _election_id: int = 0
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _headers: dict[tuple[tuple[str, int], ...], list[p4r.PacketMetadata]] = field(
        default_factory=dict
    )  # of packet-outs
    _receiver: asyncio.Task[Any] | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self._client = _Client(self.target, wait_for_ready=False)
        self._client.tls = self.tls

    async def look(self) -> MastershipState:
        """Connect, and return the mastership without changing it."""
        await self._client.open(schema=self.schema, complete_request=self._complete)
        return await self._ask(_CONNECTING, asyncio.wait_for(self._look(), _OPEN_TIMEOUT))

    async def wait_for_no_primary(self) -> MastershipState:
        """Wait, after `look`, until there is no primary, or another one."""
        return await self._ask("the connection", self._next_mastership())

    async def become_primary(self, election_id: int) -> bool:
        """Become primary, after `look`, and install the pipeline if another one runs. Return whether it was installed.

        Raises Superseded if another client has a higher id.
        """
        self._election_id = election_id
        return await self._ask("becoming primary", self._become_primary_with_pipeline())

    async def run(self) -> None:
        """Receive until the connection breaks. Raises SwitchUnavailable or Superseded then."""
        await self._ask("the connection", self._receive_with_heartbeat())

    async def close(self) -> None:
        self._closed = True
        await self._client.close()

    async def write(self, updates: Sequence[p4r.Update], *, missing_ok: bool = False) -> None:
        """Write all updates in order, in as few requests as possible. Raises SwitchError naming those that failed.

        With `missing_ok`, deleting what does not exist is no failure.
        """
        for start in range(0, len(updates), _BATCH):
            await self._ask("a write", self._write(updates[start : start + _BATCH], missing_ok=missing_ok))

    async def read(self, wanted: Iterable[_E]) -> AsyncIterator[_E]:
        kinds = {type(entry) for entry in wanted}
        entities = [entry.encode(self.schema) for entry in wanted]
        for entity in await self._ask("a read", self._read(entities)):
            for kind in kinds:
                yield kind.decode(entity, self.schema)

    async def send_packet(self, frame: bytes, **metadata: int) -> None:
        key = tuple(metadata.items())
        if key not in self._headers:
            self._headers[key] = list(fy.P4PacketOut(b"", **metadata).encode_update(self.schema).packet.metadata)
        message = p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=frame, metadata=self._headers[key]))
        async with self._sending:  # gRPC accepts one write at a time
            await self._ask("a packet-out", self._client.send(message))

    async def _ask(self, doing: str, work: Coroutine[Any, Any, _T]) -> _T:
        """Do one request. gRPC cancels it if the connection is closed meanwhile."""
        closed = SwitchUnavailable(f"switch at {self.target}: {doing} failed: the connection is closed")
        if self._closed:
            work.close()
            raise closed
        try:
            return await isolate_cancellation(work)
        except AssertionError as error:  # finsy raises it if the connection was closed before
            if not self._closed:
                raise
            raise closed from error
        except (Interrupted, asyncio.TimeoutError, fy.P4ClientError) as error:
            raise self._explain(doing, error) from error

    async def _receive_with_heartbeat(self) -> None:
        for task in await first_of(self._receive(), self._heartbeat()):
            task.result()

    async def _heartbeat(self) -> None:
        """Query the switch at intervals, because a switch that hangs keeps its connection."""
        while True:
            await asyncio.sleep(_HEARTBEAT_INTERVAL)
            await self._cookie()

    async def _receive(self) -> None:
        self._receiver = asyncio.current_task()
        while True:
            message = await self._next_message()
            kind = message.WhichOneof("update")
            if kind == "packet":
                self.on_packet(message.packet.payload, partial(self._metadata, message))
            elif kind == "arbitration":
                self._check_primary(message.arbitration)
            elif kind == "error":
                log.warning("%s reports: %s", self.target, message.error.message)

    def _metadata(self, message: p4r.StreamMessageResponse) -> dict[str, Any]:
        return fy.P4PacketIn.decode(message, self.schema).metadata

    async def _next_message(self) -> p4r.StreamMessageResponse:
        try:
            return await self._client.receive()
        except RuntimeError as error:  # finsy raises it at the end of the stream
            raise SwitchUnavailable(f"switch at {self.target}: the connection failed: {error}") from error

    async def _write(self, updates: Sequence[p4r.Update], *, missing_ok: bool) -> None:
        try:
            await self._client.request(p4r.WriteRequest(device_id=self.device_id, updates=updates))
        except asyncio.CancelledError:
            self._give_up()
            raise
        except fy.P4ClientError as error:
            if error.code == fy.GRPCStatusCode.DEADLINE_EXCEEDED:
                self._give_up()
            if not (missing_ok and error.details and error.is_not_found_only):
                raise

    def _give_up(self) -> None:
        """End the connection: only a new one can find out what the switch holds now."""
        if self._receiver is not None:
            self._receiver.cancel()

    async def _read(self, entities: Sequence[p4r.Entity]) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=entities)
        return [entity async for reply in self._client.request_iter(request) for entity in reply.entities]

    async def _look(self) -> MastershipState:
        # A client without an election id is never primary. BMv2 treats it as the lowest of all ids, so only one such
        # client can be connected at a time.
        await self._arbitrate(None)
        try:
            return await self._next_mastership()
        except fy.P4ClientError as error:
            if error.code == fy.GRPCStatusCode.INTERNAL:  # the stream had ended before the write
                await self._cookie()  # raises the stream's error
            if not error.is_election_id_used:
                raise
        await self._arbitrate(1 + secrets.randbelow(_LOW_IDS))
        return await self._next_mastership()

    async def _next_mastership(self) -> MastershipState:
        while True:
            message = await self._next_message()
            if message.WhichOneof("update") == "arbitration":
                update = message.arbitration
                known = U128.decode(update.election_id)
                return MastershipState(known, has_primary=update.status.code == fy.GRPCStatusCode.ALREADY_EXISTS)

    async def _become_primary_with_pipeline(self) -> bool:
        await asyncio.wait_for(self._arbitrate_as_primary(), _OPEN_TIMEOUT)
        await self._learn_version()
        return await self._install_pipeline()

    def _complete(self, request: Any) -> None:
        if isinstance(request, p4r.SetForwardingPipelineConfigRequest | p4r.WriteRequest):
            request.election_id.CopyFrom(U128.encode(self._election_id))

    async def _arbitrate_as_primary(self) -> None:
        await self._arbitrate(self._election_id)
        while True:
            message = await self._next_message()
            if message.WhichOneof("update") == "arbitration":
                self._check_primary(message.arbitration)
                return

    async def _arbitrate(self, election_id: int | None) -> None:
        arbitration = p4r.MasterArbitrationUpdate(device_id=self.device_id)
        if election_id is not None:
            arbitration.election_id.CopyFrom(U128.encode(election_id))
        try:
            await self._client.send(p4r.StreamMessageRequest(arbitration=arbitration))
        except fy.P4ClientError as error:
            if error.code != fy.GRPCStatusCode.INTERNAL:  # gRPC reports an ended stream so; reading the stream says why
                raise

    def _check_primary(self, update: p4r.MasterArbitrationUpdate) -> None:
        if update.status.code != fy.GRPCStatusCode.OK:
            raise Superseded(
                f"another controller, with election id {in_words(U128.decode(update.election_id))}, has taken over the "
                f"switch at {self.target} (ours was {in_words(self._election_id)})"
            )

    async def _learn_version(self) -> None:
        try:
            reply = await self._client.request(p4r.CapabilitiesRequest())
        except fy.P4ClientError as error:
            if error.code != fy.GRPCStatusCode.UNIMPLEMENTED:
                raise
        else:
            self.schema.set_p4runtime_version(fy.P4RuntimeVersion.parse(reply.p4runtime_api_version))

    async def _install_pipeline(self) -> bool:
        # The cookie is a hash of P4Info and program: equal cookies mean equal pipelines.
        try:
            reply = await self._cookie()
            if reply.config.HasField("cookie") and reply.config.cookie.cookie == self.schema.p4cookie:
                return False
            await self._delete_groups()
        except fy.P4ClientError as error:
            if not error.is_pipeline_missing and error.code != fy.GRPCStatusCode.FAILED_PRECONDITION:
                raise
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=self.schema.get_pipeline_config(),
        )
        await self._ask("installing the pipeline", self._client.install(request))
        return True

    async def _delete_groups(self) -> None:
        """Delete the multicast groups of another program.

        BMv2 would keep them without listing them, and a group inserted again would send each frame twice.
        """
        groups = await self._read([fy.P4MulticastGroupEntry().encode(self.schema)])
        if groups:
            await self._write([p4r.Update(type=p4r.Update.DELETE, entity=group) for group in groups], missing_ok=True)

    async def _cookie(self) -> p4r.GetForwardingPipelineConfigResponse:
        cookie_only = p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        return await self._client.request(
            p4r.GetForwardingPipelineConfigRequest(device_id=self.device_id, response_type=cookie_only)
        )

    def _advice(self, message: str) -> str:
        if "Connection refused" in message:
            return "; start it, for example with `p4reduce switch`, or correct --switch"
        broken = is_closed(message)
        if self.tls is not None and (broken or is_tls_trouble(message)):
            return (
                "; check that the switch uses TLS, the name in its certificate, --switch-ca, and whether it asks for "
                "--switch-cert"
            )
        return "; if the switch uses TLS, give --switch-ca" if broken else ""

    def _explain(self, doing: str, error: BaseException) -> SwitchError:
        where = f"switch at {self.target}: {doing} failed: "
        self.errors[error.code.name if isinstance(error, fy.P4ClientError) else type(error).__name__] += 1
        if isinstance(error, fy.P4ClientError):
            details = "; ".join(
                f"{of_grpc(e.message, e.canonical_code.name)} (update {i})" for i, e in error.details.items()
            )
            text = where + (details or of_grpc(error.message, error.code.name))
            if doing == _CONNECTING and (wrong := of_tls(error.message, "--switch-ca")):
                text = where + wrong
            elif doing == _CONNECTING and error.code == fy.GRPCStatusCode.UNIMPLEMENTED:
                text = (
                    f"{where}the server there does not speak P4Runtime; check that it is a switch, and not a controller"
                )
            elif doing == _CONNECTING:
                text += self._advice(error.message)
            gone = (fy.GRPCStatusCode.UNAVAILABLE, fy.GRPCStatusCode.CANCELLED, fy.GRPCStatusCode.DEADLINE_EXCEEDED)
            return SwitchUnavailable(text) if error.code in gone else SwitchError(text)
        if isinstance(error, asyncio.TimeoutError):
            return SwitchUnavailable(f"{where}no answer within {_OPEN_TIMEOUT:g} s")
        return SwitchUnavailable(f"{where}the connection was closed")


class _Client(fy.P4Client):
    """finsy's client with a channel from `switch_channel`."""

    tls: TlsFiles | None = None

    async def open(
        self, *, schema: fy.P4Schema | None = None, complete_request: Callable[[Any], None] | None = None
    ) -> None:
        self._channel = switch_channel(self._address, self.tls)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._schema = schema
        self._complete_request = complete_request

    async def install(self, request: p4r.SetForwardingPipelineConfigRequest) -> None:
        """Send the request with a deadline of its own: `request` gives a switch 10 s. Raises P4ClientError."""
        assert self._stub is not None
        if self._complete_request is not None:
            self._complete_request(request)
        call: Any = self._stub.SetForwardingPipelineConfig  # typed as a blocking one
        try:
            await call(request, timeout=_INSTALL_TIMEOUT)
        except grpc.RpcError as error:
            raise fy.P4ClientError(error, type(request).__name__, msg=request, schema=self._schema) from None


def switch_channel(target: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    """Open a channel with the certificates that the files contain now. Later connections read the files again."""
    how = channel_credentials(tls.current()) if tls is not None else None
    return open_aio_channel(target, how, _OPTIONS)
