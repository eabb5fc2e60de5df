# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client that can also do what a well-behaved one would not."""

from __future__ import annotations

from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from p4reduce.control.grpc_channels import open_grpc_channel

HERE = Path(__file__).parent
DEVICE = 1
TIMEOUT_S = 20.0

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
Set = p4r.SetForwardingPipelineConfigRequest
Get = p4r.GetForwardingPipelineConfigRequest

INFO = text_format.Parse((HERE / "conformance.p4info.txtpb").read_text(), p4i.P4Info())
CONFIG = (HERE / "conformance.json").read_bytes()

TABLES = {table.preamble.alias: table for table in INFO.tables}
ACTIONS = {action.preamble.alias: action.preamble.id for action in INFO.actions}
COUNTERS = {counter.preamble.alias: counter.preamble.id for counter in INFO.counters}
COUNTERS |= {counter.preamble.alias: counter.preamble.id for counter in INFO.direct_counters}
REGISTER = INFO.registers[0].preamble.id
PACKET_OUT = {item.name: item.id for item in INFO.controller_packet_metadata[0].metadata}
PACKET_IN = {item.id: item.name for item in INFO.controller_packet_metadata[1].metadata}


class Failed(Exception):
    """What a call was refused with; `codes` has one canonical code an update of a Write."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.code = error.code()
        self.codes: list[int] = []
        self.messages: list[str] = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for detail in rpc_status.Status.FromString(value).details:
                    item = p4r.Error()
                    assert detail.Unpack(item)
                    self.codes.append(item.canonical_code)
                    self.messages.append(item.message)


def uint128(value: int) -> p4r.Uint128:
    return p4r.Uint128(high=value >> 64, low=value & (2**64 - 1))


def number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def config(cookie: int | None = 7) -> p4r.ForwardingPipelineConfig:
    result = p4r.ForwardingPipelineConfig(p4info=INFO, p4_device_config=CONFIG)
    if cookie is not None:
        result.cookie.cookie = cookie
    return result


def action(name: str, *values: int | bytes) -> p4r.TableAction:
    result = p4r.TableAction()
    result.action.action_id = ACTIONS[name]
    for index, value in enumerate(values):
        result.action.params.add(param_id=index + 1, value=number(value) if isinstance(value, int) else value)
    return result


def exact_entry(dst: int | bytes, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["exact_table"].preamble.id, action=act)
    entry.match.add(field_id=1).exact.value = number(dst) if isinstance(dst, int) else dst
    return entry


def ternary_entry(
    src: tuple[int, int] | None, kind: int, priority: int, act: p4r.TableAction | None = None
) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["ternary_table"].preamble.id, action=act, priority=priority)
    if src is not None:
        ternary = entry.match.add(field_id=1).ternary
        ternary.value, ternary.mask = number(src[0]), number(src[1])
    entry.match.add(field_id=2).exact.value = number(kind)
    return entry


def lpm_entry(dst: tuple[int, int] | None, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    entry = p4r.TableEntry(table_id=TABLES["lpm_table"].preamble.id, action=act)
    if dst is not None:
        lpm = entry.match.add(field_id=1).lpm
        lpm.value, lpm.prefix_len = number(dst[0]), dst[1]
    return entry


def default_entry(table: str, act: p4r.TableAction | None = None) -> p4r.TableEntry:
    return p4r.TableEntry(table_id=TABLES[table].preamble.id, is_default_action=True, action=act)


def group_entry(group: int, *replicas: tuple[int, int]) -> p4r.Entity:
    entity = p4r.Entity()
    entry = entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = group
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return entity


def counter_entry(name: str | int, index: int | None = None, packets: int = 0, size: int = 0) -> p4r.Entity:
    entity = p4r.Entity()
    entity.counter_entry.counter_id = COUNTERS[name] if isinstance(name, str) else name
    if index is not None:
        entity.counter_entry.index.index = index
    if packets or size:
        entity.counter_entry.data.packet_count, entity.counter_entry.data.byte_count = packets, size
    return entity


class Client:
    """One controller: its stream and its calls. Use as a context manager."""

    def __init__(self, address: str, election_id: int = 1) -> None:
        self.election_id = election_id
        # A channel of its own, as another process would have: gRPC shares connections within one.
        self._channel = open_grpc_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._requests: SimpleQueue[p4r.StreamMessageRequest | None] = SimpleQueue()
        self._responses: SimpleQueue[p4r.StreamMessageResponse | Failed | None] = SimpleQueue()
        self._stream: Any = None
        self._reader: Thread | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._channel.close()

    # The stream.

    def open(self) -> None:
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None), wait_for_ready=True)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def vanish(self) -> None:
        """Break the connection."""
        self._stream.cancel()
        self._channel.close()

    def hang_up(self) -> None:
        """Close the stream, and wait until the server has taken leave too."""
        if self._reader is not None:
            self._requests.put(None)
            self._reader.join(TIMEOUT_S)
            self._stream.cancel()
            self._reader.join(TIMEOUT_S)
            assert not self._reader.is_alive()
            self._reader = None

    def _read(self) -> None:
        try:
            for message in self._stream:
                self._responses.put(message)
        except grpc.RpcError as error:
            self._responses.put(Failed(error))
        self._responses.put(None)

    def send(self, request: p4r.StreamMessageRequest) -> None:
        self._requests.put(request)

    def receive(self, timeout: float = TIMEOUT_S) -> p4r.StreamMessageResponse:
        """The next message; raises Failed or EOFError where the stream ended, queue.Empty where nothing came."""
        message = self._responses.get(timeout=timeout)
        if isinstance(message, Failed):
            raise message
        if message is None:
            raise EOFError
        return message

    def is_quiet(self, timeout: float = 0.3) -> bool:
        try:
            self.receive(timeout)
        except Empty:
            return True
        return False

    def announce(self, election_id: int | None = None, device_id: int = DEVICE) -> None:
        """Send an arbitration request; without an election id where that is 0."""
        if self._reader is None:
            self.open()
        if election_id is not None:
            self.election_id = election_id
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = device_id
        if self.election_id:
            request.arbitration.election_id.CopyFrom(uint128(self.election_id))
        self.send(request)

    def standing(self) -> tuple[int, int]:
        """(status code, election id of the primary) of the next message, which is one of arbitration."""
        message = self.receive()
        assert message.WhichOneof("update") == "arbitration", message
        update = message.arbitration
        assert update.device_id == DEVICE
        return update.status.code, update.election_id.high << 64 | update.election_id.low

    def become_primary(self) -> Client:
        self.announce()
        assert self.standing() == (0, self.election_id)
        return self

    def packet_out(self, payload: bytes, **metadata: int) -> None:
        request = p4r.StreamMessageRequest()
        request.packet.payload = payload
        for name, value in metadata.items():
            request.packet.metadata.add(metadata_id=PACKET_OUT[name], value=number(value))
        self.send(request)

    def packet_in(self) -> tuple[bytes, dict[str, bytes]]:
        message = self.receive()
        assert message.WhichOneof("update") == "packet", message
        return message.packet.payload, {PACKET_IN[one.metadata_id]: one.value for one in message.packet.metadata}

    # The calls.

    def configure(self, kind: Any = Set.VERIFY_AND_COMMIT, what: p4r.ForwardingPipelineConfig | None = None) -> None:
        request = Set(device_id=DEVICE, action=kind, config=what)
        request.election_id.CopyFrom(uint128(self.election_id))
        if what is None and kind != Set.COMMIT:
            request.config.CopyFrom(config())
        self._call(self.stub.SetForwardingPipelineConfig, request)

    def configuration(self, wanted: Any = Get.ALL) -> p4r.ForwardingPipelineConfig:
        request = Get(device_id=DEVICE, response_type=wanted)
        result: p4r.ForwardingPipelineConfig = self._call(self.stub.GetForwardingPipelineConfig, request).config
        return result

    def write(self, kind: Any, *entities: p4r.Entity | p4r.TableEntry, **options: Any) -> None:
        request = p4r.WriteRequest(device_id=DEVICE, **options)
        request.election_id.CopyFrom(uint128(self.election_id))
        for entity in entities:
            request.updates.add(type=kind).entity.CopyFrom(_entity(entity))
        self._call(self.stub.Write, request)

    def codes(self, kind: Any, *entities: p4r.Entity | p4r.TableEntry) -> list[int]:
        """One canonical code an update; empty where all were done."""
        try:
            self.write(kind, *entities)
        except Failed as error:
            if error.code is not grpc.StatusCode.UNKNOWN or len(error.codes) != len(entities):
                raise
            return error.codes
        return []

    def read(self, *entities: p4r.Entity | p4r.TableEntry) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=DEVICE, entities=[_entity(entity) for entity in entities])
        try:
            return [one for response in self.stub.Read(request, timeout=TIMEOUT_S) for one in response.entities]
        except grpc.RpcError as error:
            raise Failed(error) from None

    def read_entries(self, entry: p4r.TableEntry) -> list[p4r.TableEntry]:
        return [entity.table_entry for entity in self.read(entry)]

    def read_counts(self, entity: p4r.Entity) -> dict[int, tuple[int, int]]:
        return {
            one.counter_entry.index.index: (one.counter_entry.data.packet_count, one.counter_entry.data.byte_count)
            for one in self.read(entity)
        }

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise Failed(error) from None


def _entity(what: p4r.Entity | p4r.TableEntry) -> p4r.Entity:
    return what if isinstance(what, p4r.Entity) else p4r.Entity(table_entry=what)
