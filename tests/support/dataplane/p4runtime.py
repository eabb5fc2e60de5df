# SPDX-License-Identifier: Apache-2.0
"""A small synchronous P4Runtime client: everything is named as in P4Info, numbers are plain ints."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from p4reduce.control.grpc_channels import open_grpc_channel

DEVICE = 1
TIMEOUT_S = 30.0


class P4RuntimeError(RuntimeError):
    """What the server refused; `codes` has one gRPC code an update (0: that one was done)."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.codes: list[int] = []
        details = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                for item in rpc_status.Status.FromString(value).details:
                    one = p4r.Error()
                    if item.Unpack(one):
                        self.codes.append(one.canonical_code)
                        details.append(one.message)
        super().__init__(f"{error.code().name}: {error.details()} {details}")
        self.code = error.code()


@dataclass(frozen=True)
class Entry:
    """One table entry. A match on an lpm key is (value, prefix length); a ternary one is (value, mask)."""

    table: str
    match: Mapping[str, int | tuple[int, int]]
    action: str = "NoAction"
    params: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PacketIn:
    ingress_port: int
    bitmap: int
    payload: bytes
    padding: int = 0


def number(value: int) -> bytes:
    """P4Runtime's canonical form: the shortest byte string, at least one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Program:
    """P4Info by name, and what the names of its registers tell about the build."""

    def __init__(self, info: Path, config: Path) -> None:
        self.info = text_format.Parse(info.read_text(), p4i.P4Info())
        self.config = config.read_bytes()
        self.tables = {table.preamble.name: table for table in self.info.tables}
        self.actions = {action.preamble.name: action for action in self.info.actions}
        self.counters = {counter.preamble.name: counter for counter in self.info.counters}
        self.meters = {meter.preamble.name: meter for meter in self.info.meters}
        self.packet_metadata = {
            header.preamble.name: {item.name: item for item in header.metadata}
            for header in self.info.controller_packet_metadata
        }
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
                continue  # P4Runtime wants a match on anything left out
            match = message.match.add(field_id=item.id)
            if item.match_type == p4i.MatchField.EXACT:
                match.exact.value = number(value)
            elif item.match_type == p4i.MatchField.LPM:
                match.lpm.value, match.lpm.prefix_len = number(value[0]), value[1]
            else:
                raise ValueError(f"{entry.table}: match type {item.match_type} is not used by this program")
        message.action.CopyFrom(self.action(entry.action, entry.params))
        return message

    def action(self, name: str, params: Mapping[str, int]) -> p4r.TableAction:
        action = self.actions[name]
        message = p4r.TableAction()
        message.action.action_id = action.preamble.id
        for item in action.params:
            message.action.params.add(param_id=item.id, value=number(params[item.name]))
        return message


class P4Runtime:
    """One primary controller's session. Use as a context manager."""

    def __init__(self, address: str, program: Program) -> None:
        self.program = program
        self.packet_ins: queue.Queue[PacketIn] = queue.Queue()
        self._answers: queue.Queue[p4r.StreamMessageResponse | Exception] = queue.Queue()
        self._requests: queue.Queue[p4r.StreamMessageRequest | None] = queue.Queue()
        self._channel = open_grpc_channel(address)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        grpc.channel_ready_future(self._channel).result(timeout=TIMEOUT_S)
        self._election_id = p4r.Uint128(high=0, low=1)
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, name="p4runtime-stream", daemon=True)
        self._reader.start()

    def __enter__(self) -> P4Runtime:
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = DEVICE
        request.arbitration.election_id.CopyFrom(self._election_id)
        self._requests.put(request)
        try:
            answer = self._answers.get(timeout=TIMEOUT_S)
            if isinstance(answer, Exception):
                raise answer
            if answer.WhichOneof("update") != "arbitration" or answer.arbitration.status.code != 0:
                raise RuntimeError(f"not the primary: {answer}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._stream.cancel()
        self._channel.close()
        self._reader.join(TIMEOUT_S)

    def _read(self) -> None:
        metadata = {item.id: name for name, item in self.program.packet_metadata["packet_in"].items()}
        try:
            for message in self._stream:
                if message.WhichOneof("update") == "packet":
                    fields = {metadata[m.metadata_id]: int.from_bytes(m.value, "big") for m in message.packet.metadata}
                    self.packet_ins.put(PacketIn(payload=message.packet.payload, **fields))
                else:
                    self._answers.put(message)
        except grpc.RpcError as error:
            self._answers.put(error)

    def install(self) -> None:
        """Install the pipeline and commit it: tables, groups, registers and counters start empty."""
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=DEVICE,
            election_id=self._election_id,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self.program.info)
        request.config.p4_device_config = self.program.config
        self._stub.SetForwardingPipelineConfig(request, timeout=TIMEOUT_S)

    def write(self, kind: int, entities: Iterable[p4r.Entity]) -> None:
        request = p4r.WriteRequest(device_id=DEVICE, election_id=self._election_id)
        for entity in entities:
            request.updates.add(type=kind).entity.CopyFrom(entity)
        try:
            self._stub.Write(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise P4RuntimeError(error) from None

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        request = p4r.ReadRequest(device_id=DEVICE)
        request.entities.add().CopyFrom(entity)
        try:
            for answer in self._stub.Read(request, timeout=TIMEOUT_S):
                yield from answer.entities
        except grpc.RpcError as error:
            raise P4RuntimeError(error) from None

    def insert(self, *entries: Entry) -> None:
        self.write(p4r.Update.INSERT, (p4r.Entity(table_entry=self.program.entry(entry)) for entry in entries))

    def modify(self, *entries: Entry) -> None:
        self.write(p4r.Update.MODIFY, (p4r.Entity(table_entry=self.program.entry(entry)) for entry in entries))

    def delete(self, *entries: Entry) -> None:
        messages = [self.program.entry(entry) for entry in entries]
        for message in messages:
            message.ClearField("action")
        self.write(p4r.Update.DELETE, (p4r.Entity(table_entry=message) for message in messages))

    def set_default(self, table: str, action: str, params: Mapping[str, int]) -> None:
        entry = p4r.TableEntry(table_id=self.program.tables[table].preamble.id, is_default_action=True)
        entry.action.CopyFrom(self.program.action(action, params))
        self.write(p4r.Update.MODIFY, [p4r.Entity(table_entry=entry)])

    def write_group(self, kind: int, group: int, replicas: Iterable[tuple[int, int]] = ()) -> None:
        """Insert, modify or delete a multicast group; a replica is (port, instance)."""
        entity = p4r.Entity()
        entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = group
        for port, instance in replicas:
            entity.packet_replication_engine_entry.multicast_group_entry.replicas.add(
                egress_port=port, instance=instance
            )
        self.write(kind, [entity])

    def read_counters(self, name: str) -> dict[int, tuple[int, int]]:
        """Index -> (packets, bytes) of every cell that has counted something."""
        entity = p4r.Entity()
        entity.counter_entry.counter_id = self.program.counters[name].preamble.id
        cells = [answer.counter_entry for answer in self.read(entity)]
        return {
            cell.index.index: (cell.data.packet_count, cell.data.byte_count) for cell in cells if cell.data.packet_count
        }

    def read_direct_counters(self, table: str) -> dict[tuple[bytes, ...], tuple[int, int]]:
        """Match values, in the order of the fields, -> (packets, bytes) of every entry of a table."""
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
        """A cell of a meter, or all; `config` is cir, cburst, pir, pburst."""
        entity = p4r.Entity()
        entity.meter_entry.meter_id = self.program.meters[name].preamble.id
        if index is not None:
            entity.meter_entry.index.index = index
        if config is not None:
            cir, cburst, pir, pburst = config
            entity.meter_entry.config.CopyFrom(p4r.MeterConfig(cir=cir, cburst=cburst, pir=pir, pburst=pburst))
        return entity

    def write_meter(self, name: str, index: int, config: tuple[int, int, int, int] | None) -> None:
        """Configure a cell; None: as it is at first."""
        self.write(p4r.Update.MODIFY, [self.meter_entry(name, index, config)])

    def packet_out(
        self, payload: bytes, *, through_pipeline: bool = True, egress_port: int = 0, multicast_group: int = 0
    ) -> None:
        values: dict[str, Any] = {
            "through_pipeline": int(through_pipeline),
            "padding": 0,
            "egress_port": egress_port,
            "multicast_group": multicast_group,
        }
        request = p4r.StreamMessageRequest()
        request.packet.payload = payload
        for name, item in self.program.packet_metadata["packet_out"].items():
            request.packet.metadata.add(metadata_id=item.id, value=number(values[name]))
        self._requests.put(request)
