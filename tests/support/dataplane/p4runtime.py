# SPDX-License-Identifier: Apache-2.0
"""Synchronous P4Runtime clients: one that can also misbehave, and one that refers to P4 objects by name."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import grpc
import pytest
from finsy.proto import p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from p4reduce.control.grpc_channels import open_grpc_channel

from . import frames

DEVICE = 1
TIMEOUT_S = 30.0
Set = p4r.SetForwardingPipelineConfigRequest
Get = p4r.GetForwardingPipelineConfigRequest


def number(value: int) -> bytes:
    """Return a number in P4Runtime's canonical form: the shortest byte string, at least one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def number_of(value: int | str, bits: int) -> int:
    """Return a value of a table's key or an action's parameter, which has `bits` bits. A text is an IP address."""
    return frames.address_number(value, bits) if isinstance(value, str) else value


def uint128(value: int) -> p4r.Uint128:
    return p4r.Uint128(high=value >> 64, low=value & (2**64 - 1))


class Failed(Exception):
    """The error of a refused call.

    codes: for a Write, the canonical code of each update.
    """

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


class Client:
    """A controller's stream and calls, for use as a context manager."""

    def __init__(self, address: str, info: p4i.P4Info, config: bytes, election_id: int = 1) -> None:
        self.info, self.config, self.election_id = info, config, election_id
        # A connection of its own, as if from another process: gRPC shares connections within a process.
        self._channel = open_grpc_channel(address)
        self.stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._requests: SimpleQueue[p4r.StreamMessageRequest | None] = SimpleQueue()
        self._responses: SimpleQueue[p4r.StreamMessageResponse | Failed | None] = SimpleQueue()
        self._stream: Any = None
        self._reader: Thread | None = None

    def __enter__(self) -> Any:
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
        """Close the stream, and wait until the server has closed it, too."""
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
                self.take(message)
        except grpc.RpcError as error:
            self._responses.put(Failed(error))
        self._responses.put(None)

    def take(self, message: p4r.StreamMessageResponse) -> None:
        """Handle a message of the stream."""
        self._responses.put(message)

    def send(self, request: p4r.StreamMessageRequest) -> None:
        self._requests.put(request)

    def receive(self, timeout: float = TIMEOUT_S) -> p4r.StreamMessageResponse:
        """Return the next message of the stream.

        Raises Failed or EOFError if the stream has ended, and queue.Empty if no message came in time.
        """
        message = self._responses.get(timeout=timeout)
        if isinstance(message, Failed):
            raise message
        if message is None:
            raise EOFError
        return message

    def is_quiet(self) -> bool:
        try:
            self.receive(0.3)
        except Empty:
            return True
        return False

    def announce(self, election_id: int | None = None, device_id: int = DEVICE) -> None:
        """Send an arbitration request. An election id of 0 is left out."""
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
        """Return the status code and the primary's election id of the next message, an arbitration update."""
        message = self.receive()
        assert message.WhichOneof("update") == "arbitration", message
        update = message.arbitration
        assert update.device_id == DEVICE
        return update.status.code, update.election_id.high << 64 | update.election_id.low

    def become_primary(self) -> Any:
        self.announce()
        assert self.standing() == (0, self.election_id)
        return self

    def packet_out(self, payload: bytes, **metadata: int) -> None:
        ids = {item.name: item.id for item in self._metadata("packet_out")}
        request = p4r.StreamMessageRequest()
        request.packet.payload = payload
        for name, value in metadata.items():
            request.packet.metadata.add(metadata_id=ids[name], value=number(value))
        self.send(request)

    def packet_in(self) -> tuple[bytes, dict[str, bytes]]:
        """Return the payload and the metadata of the next message, a packet-in."""
        message = self.receive()
        assert message.WhichOneof("update") == "packet", message
        return message.packet.payload, self.metadata_of(message.packet)

    def metadata_of(self, packet: p4r.PacketIn) -> dict[str, bytes]:
        names = {item.id: item.name for item in self._metadata("packet_in")}
        return {names[one.metadata_id]: one.value for one in packet.metadata}

    def _metadata(self, header: str) -> Iterable[Any]:
        return next(one.metadata for one in self.info.controller_packet_metadata if one.preamble.name == header)

    def pipeline_config(self, cookie: int | None = 7) -> p4r.ForwardingPipelineConfig:
        """Return the program as a pipeline configuration."""
        result = p4r.ForwardingPipelineConfig(p4info=self.info, p4_device_config=self.config)
        if cookie is not None:
            result.cookie.cookie = cookie
        return result

    # The calls.

    def configure(self, kind: Any = Set.VERIFY_AND_COMMIT, what: p4r.ForwardingPipelineConfig | None = None) -> None:
        request = Set(device_id=DEVICE, action=kind, config=what)
        request.election_id.CopyFrom(uint128(self.election_id))
        if what is None and kind != Set.COMMIT:
            request.config.CopyFrom(self.pipeline_config())
        self._call(self.stub.SetForwardingPipelineConfig, request)

    def configuration(self, wanted: Any = Get.ALL) -> p4r.ForwardingPipelineConfig:
        request = Get(device_id=DEVICE, response_type=wanted)
        result: p4r.ForwardingPipelineConfig = self._call(self.stub.GetForwardingPipelineConfig, request).config
        return result

    def write(self, kind: Any, *entities: p4r.Entity | p4r.TableEntry, **options: Any) -> None:
        request = p4r.WriteRequest(device_id=DEVICE, **options)
        request.election_id.CopyFrom(uint128(self.election_id))
        for entity in entities:
            request.updates.add(type=kind).entity.CopyFrom(entity_of(entity))
        self._call(self.stub.Write, request)

    def codes(self, kind: Any, *entities: p4r.Entity | p4r.TableEntry) -> list[int]:
        """Write entities, and return the canonical code of each update, or nothing if all succeeded."""
        try:
            self.write(kind, *entities)
        except Failed as error:
            if error.code is not grpc.StatusCode.UNKNOWN or len(error.codes) != len(entities):
                raise
            return error.codes
        return []

    def read(self, *entities: p4r.Entity | p4r.TableEntry) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=DEVICE, entities=[entity_of(entity) for entity in entities])
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


def entity_of(what: p4r.Entity | p4r.TableEntry) -> p4r.Entity:
    return what if isinstance(what, p4r.Entity) else p4r.Entity(table_entry=what)


@contextmanager
def refused(code: grpc.StatusCode, words: str | None = None) -> Iterator[None]:
    """Assert that a call in the block is refused with this code, and a message that matches `words`."""
    with pytest.raises(Failed, match=words) as failed:
        yield
    assert failed.value.code is code


def group_entry(group: int, *replicas: tuple[int, int]) -> p4r.Entity:
    entity = p4r.Entity()
    entry = entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = group
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
    return entity


@dataclass(frozen=True)
class Entry:
    """A table entry.

    match: the value of each exact key, (value, prefix length) of an lpm key, or (value, mask) of a ternary one. A text
        is an IP address.
    """

    table: str
    match: Mapping[str, int | str | tuple[int, int]]
    action: str = "NoAction"
    params: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class PacketIn:
    ingress_port: int
    bitmap: int
    payload: bytes
    padding: int = 0


class Program:
    """P4Info by name. The names of registers also give the lanes, block size and slot halves of the build."""

    def __init__(self, info: Path, config: Path) -> None:
        self.info = text_format.Parse(info.read_text(), p4i.P4Info())
        self.config = config.read_bytes()
        self.tables = {table.preamble.name: table for table in self.info.tables}
        self.actions = {action.preamble.name: action for action in self.info.actions}
        self.counters = {counter.preamble.name: counter for counter in self.info.counters}
        self.meters = {meter.preamble.name: meter for meter in self.info.meters}
        sums = [
            found
            for register in self.info.registers
            if (found := re.search(r"\.lane(\d+)\.value(\d+)\.sums$", register.preamble.name))
        ]
        self.lanes = 1 + max(int(found[1]) for found in sums)
        self.block_size = 1 + max(int(found[2]) for found in sums)
        self.halves = next(r.size for r in self.info.registers if r.preamble.name.endswith(".slot_state.seqs"))

    def entry(self, entry: Entry) -> p4r.TableEntry:
        table = self.tables[entry.table]
        message = p4r.TableEntry(table_id=table.preamble.id)
        for item in table.match_fields:
            value = entry.match[item.name]
            if item.match_type == p4i.MatchField.LPM and value[1] == 0:
                continue  # P4Runtime requires that a match on anything is left out
            match = message.match.add(field_id=item.id)
            if item.match_type == p4i.MatchField.EXACT:
                match.exact.value = number(number_of(value, item.bitwidth))
            elif item.match_type == p4i.MatchField.LPM:
                match.lpm.value, match.lpm.prefix_len = number(value[0]), value[1]
            else:
                raise ValueError(f"{entry.table}: match type {item.match_type} is not used by this program")
        message.action.CopyFrom(self.action(entry.action, entry.params))
        return message

    def action(self, name: str, params: Mapping[str, int | str]) -> p4r.TableAction:
        action = self.actions[name]
        message = p4r.TableAction()
        message.action.action_id = action.preamble.id
        for item in action.params:
            message.action.params.add(param_id=item.id, value=number(number_of(params[item.name], item.bitwidth)))
        return message


class P4Runtime(Client):
    """A client that becomes primary and refers to P4 objects by name, for use as a context manager."""

    def __init__(self, address: str, program: Program) -> None:
        super().__init__(address, program.info, program.config)
        self.program = program
        self.packet_ins: queue.Queue[PacketIn] = queue.Queue()

    def __enter__(self) -> Any:
        return self.become_primary()

    def take(self, message: p4r.StreamMessageResponse) -> None:
        if message.WhichOneof("update") == "packet":
            fields = {name: int.from_bytes(value, "big") for name, value in self.metadata_of(message.packet).items()}
            self.packet_ins.put(PacketIn(payload=message.packet.payload, **fields))
        else:
            super().take(message)

    def insert(self, *entries: Entry) -> None:
        self.write(p4r.Update.INSERT, *map(self.program.entry, entries))

    def modify(self, *entries: Entry) -> None:
        self.write(p4r.Update.MODIFY, *map(self.program.entry, entries))

    def delete(self, *entries: Entry) -> None:
        messages = [self.program.entry(entry) for entry in entries]
        for message in messages:
            message.ClearField("action")
        self.write(p4r.Update.DELETE, *messages)

    def set_default(self, table: str, action: str, params: Mapping[str, int]) -> None:
        entry = p4r.TableEntry(table_id=self.program.tables[table].preamble.id, is_default_action=True)
        entry.action.CopyFrom(self.program.action(action, params))
        self.write(p4r.Update.MODIFY, entry)

    def write_group(self, kind: int, group: int, replicas: Iterable[tuple[int, int]] = ()) -> None:
        """Insert, modify or delete a multicast group. A replica is a pair (port, instance)."""
        self.write(kind, group_entry(group, *replicas))

    def read_counters(self, name: str) -> dict[int, tuple[int, int]]:
        """Return (packets, bytes) of every counter cell that is not zero, by index."""
        entity = p4r.Entity()
        entity.counter_entry.counter_id = self.program.counters[name].preamble.id
        cells = [answer.counter_entry for answer in self.read(entity)]
        return {
            cell.index.index: (cell.data.packet_count, cell.data.byte_count) for cell in cells if cell.data.packet_count
        }

    def read_direct_counters(self, table: str) -> dict[tuple[bytes, ...], tuple[int, int]]:
        """Return (packets, bytes) of every entry of a table, by its match values in the order of the fields."""
        entity = p4r.Entity()
        entity.direct_counter_entry.table_entry.table_id = self.program.tables[table].preamble.id
        found = [answer.direct_counter_entry for answer in self.read(entity)]
        return {
            tuple(one.exact.value for one in sorted(entry.table_entry.match, key=lambda one: one.field_id)): (
                entry.data.packet_count,
                entry.data.byte_count,
            )
            for entry in found
        }

    def meter_entry(self, name: str, index: int | None, config: tuple[int, int, int, int] | None = None) -> p4r.Entity:
        """Return the entity of a meter's cell, or of all cells.

        config: cir, cburst, pir and pburst.
        """
        entity = p4r.Entity()
        entity.meter_entry.meter_id = self.program.meters[name].preamble.id
        if index is not None:
            entity.meter_entry.index.index = index
        if config is not None:
            cir, cburst, pir, pburst = config
            entity.meter_entry.config.CopyFrom(p4r.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst))
        return entity

    def write_meter(self, name: str, index: int, config: tuple[int, int, int, int] | None) -> None:
        """Configure a cell of a meter. None restores its default."""
        self.write(p4r.Update.MODIFY, self.meter_entry(name, index, config))

    def packet_out(  # type: ignore[override]
        self, payload: bytes, *, through_pipeline: bool = True, egress_port: int = 0, multicast_group: int = 0
    ) -> None:
        to = {"egress_port": egress_port, "multicast_group": multicast_group}
        super().packet_out(payload, through_pipeline=int(through_pipeline), padding=0, **to)
