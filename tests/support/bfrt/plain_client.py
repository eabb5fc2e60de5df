# SPDX-License-Identifier: Apache-2.0
"""A client of BF Runtime that says what a test asks it to, right or wrong, and shows what comes back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from p4reduce.control.grpc_channels import open_grpc_channel

from . import bfruntime_pb2 as bfrt
from .schema import Action, Field, TableSchema
from .server import SERVICE

TIMEOUT_S = 20.0
ALL_PIPES = 0xFFFF
Update = bfrt.Update


class PlainClient:
    """A client with the tables of a schema; use it as a context manager."""

    def __init__(self, address: str, tables: Mapping[int, TableSchema], number: int = 7) -> None:
        self.number = number
        self.tables = {table.name: table for table in tables.values()}
        self.messages: queue.SimpleQueue[bfrt.StreamMessageResponse | None] = queue.SimpleQueue()  # None: the end
        self.ended = threading.Event()
        self.end: grpc.StatusCode | None = None
        self.end_message = ""
        self._requests: queue.SimpleQueue[bfrt.StreamMessageRequest | None] = queue.SimpleQueue()
        unlimited = [("grpc.max_receive_message_length", -1)]
        self._channel = open_grpc_channel(address, options=unlimited)

    def __enter__(self) -> PlainClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._channel.close()

    # Clients and pipelines

    def subscribe(self, port_changes: bool = False) -> bfrt.StreamMessageResponse:
        """Open the stream and subscribe. Returns the first message."""
        self.open_stream()
        request = bfrt.StreamMessageRequest(client_id=self.number)
        request.subscribe.notifications.enable_port_status_change_notifications = port_changes
        self._requests.put(request)
        return self.message()

    def open_stream(self) -> None:
        """Open the stream."""
        call = self._channel.stream_stream(
            f"/{SERVICE}/StreamChannel",
            request_serializer=bfrt.StreamMessageRequest.SerializeToString,
            response_deserializer=bfrt.StreamMessageResponse.FromString,
        )(iter(self._requests.get, None))
        threading.Thread(target=self._follow, args=(call,), daemon=True).start()

    def _follow(self, call: Any) -> None:
        with suppress(grpc.RpcError):
            for message in call:
                self.messages.put(message)
        self.end, self.end_message = call.code(), call.details()
        self.ended.set()
        self.messages.put(None)

    def message(self) -> bfrt.StreamMessageResponse:
        """Return the next message of the stream."""
        try:
            message = self.messages.get(timeout=TIMEOUT_S)
        except queue.Empty:
            raise AssertionError("no message came") from None
        assert message is not None, f"the stream has ended with {self.end} {self.end_message}"
        return message

    def close_stream(self) -> None:
        """End the stream."""
        self._requests.put(None)
        assert self.ended.wait(TIMEOUT_S)

    def set_config(self, config: Sequence[bfrt.ForwardingPipelineConfig], action: str, device: int = 0) -> None:
        """Call SetForwardingPipelineConfig."""
        request = bfrt.SetForwardingPipelineConfigRequest(device_id=device, client_id=self.number, action=action)
        request.config.extend(config)
        self._call("SetForwardingPipelineConfig", request, bfrt.SetForwardingPipelineConfigResponse)

    def bind(self, name: str = "p4reduce") -> None:
        """Bind to a program."""
        self.set_config([bfrt.ForwardingPipelineConfig(p4_name=name)], "BIND")

    def config(self, device: int = 0) -> bfrt.GetForwardingPipelineConfigResponse:
        """Return the config of the device."""
        request = bfrt.GetForwardingPipelineConfigRequest(device_id=device, client_id=self.number)
        return self._call("GetForwardingPipelineConfig", request, bfrt.GetForwardingPipelineConfigResponse)

    # Entries

    def entry(
        self, table: str, key: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, action: str = ""
    ) -> bfrt.TableEntry:
        """Return an entry; keys and data are by names. A pair is a value with its prefix length or its mask."""
        schema = self.tables[table]
        made = bfrt.TableEntry(table_id=schema.id)
        if key is not None:
            made.key.SetInParent()
            fields = {field.name: field for field in schema.key.values()}
            for name, value in key.items():
                add_match(made.key, fields[name], value)
        if data is not None or action:
            made.data.SetInParent()
            called = next((one for one in schema.actions.values() if one.name == action), Action(0, "", {}, ""))
            made.data.action_id = called.id
            declared = {field.name: field for field in (*schema.data.values(), *called.data.values())}
            for name, value in (data or {}).items():
                add_value(made.data, declared[name], value)
        return made

    def write(self, *updates: tuple[str, bfrt.TableEntry] | bfrt.Entity, **target: int) -> list[str]:
        """Write updates, each with its kind, or operations and attributes. Returns "CODE message" or "" for each."""
        request = bfrt.WriteRequest(client_id=self.number, p4_name=target.pop("name", ""))  # type: ignore[arg-type]
        request.target.MergeFrom(_target(target))
        for update in updates:
            if isinstance(update, bfrt.Entity):
                request.updates.add(type=Update.INSERT, entity=update)
            else:
                request.updates.add(type=update[0], entity=bfrt.Entity(table_entry=update[1]))
        errors = self._batch(lambda: self._call("Write", request, bfrt.WriteResponse), "Write Error Status")
        return [*errors, *[""] * (len(updates) - len(errors))]

    def read(self, *entries: bfrt.TableEntry, **target: int) -> list[bfrt.TableEntry]:
        """Read entries; raises AssertionError for what is refused."""
        found, errors = self.try_read(*entries, **target)
        assert not errors, errors
        return found

    def try_read(self, *entries: bfrt.TableEntry, **target: int) -> tuple[list[bfrt.TableEntry], list[str]]:
        """Read entries; returns those that came, and the errors."""
        request = bfrt.ReadRequest(client_id=self.number)
        request.target.MergeFrom(_target(target))
        request.entities.extend(bfrt.Entity(table_entry=entry) for entry in entries)
        call = self._channel.unary_stream(
            f"/{SERVICE}/Read",
            request_serializer=bfrt.ReadRequest.SerializeToString,
            response_deserializer=bfrt.ReadResponse.FromString,
        )
        found: list[bfrt.TableEntry] = []

        def read() -> None:
            for response in call(request, timeout=TIMEOUT_S):
                found.extend(entity.table_entry for entity in response.entities)

        errors = self._batch(read, "Read Error Status")
        return found, errors

    def operation(self, table: str, name: str) -> bfrt.Entity:
        """Return an operation."""
        operation = bfrt.TableOperation(table_id=self.tables[table].id, table_operations_type=name)
        return bfrt.Entity(table_operation=operation)

    def notify_port_changes(self, enable: bool = True) -> bfrt.Entity:
        """Return the attribute that registers for port notifications."""
        attribute = bfrt.TableAttribute(table_id=self.tables["$PORT"].id)
        attribute.port_status_notify.enable = enable
        return bfrt.Entity(table_attribute=attribute)

    def values(self, entry: bfrt.TableEntry) -> dict[str, Any]:
        """Return the data of an entry by names; a field that comes several times is a list."""
        schema = next(one for one in self.tables.values() if one.id == entry.table_id)
        called = schema.actions[entry.data.action_id].data if entry.data.action_id else {}
        declared = {**schema.data, **called}
        made: dict[str, Any] = {}
        for one in entry.data.fields:
            name, value = declared[one.field_id].name, value_of(one)
            made[name] = [*_listed(made[name]), value] if name in made else value
        return made

    def _batch(self, call: Any, text: str) -> list[str]:
        """Make a call, and return the errors of its parts."""
        try:
            call()
        except grpc.RpcError as error:
            refusal = error
        else:
            return []
        metadata = dict(refusal.trailing_metadata() or ())
        if "grpc-status-details-bin" not in metadata:
            raise refusal
        status = bfrt.Status.FromString(metadata["grpc-status-details-bin"])
        assert (refusal.code(), refusal.details()) == (grpc.StatusCode.UNKNOWN, text)
        assert (status.code, status.message) == (grpc.StatusCode.UNKNOWN.value[0], text)
        return [_described(detail) for detail in status.details]

    def _call(self, method: str, request: Any, response: Any) -> Any:
        serve = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return serve(request, timeout=TIMEOUT_S)


def _described(detail: Any) -> str:
    error = bfrt.Error()
    assert detail.Unpack(error), detail.type_url
    code = next(code for code in grpc.StatusCode if code.value[0] == error.canonical_code)
    return f"{code.name} {error.message}" if error.canonical_code else ""


def _target(target: Mapping[str, int]) -> bfrt.TargetDevice:
    return bfrt.TargetDevice(
        device_id=target.get("device", 0), pipe_id=target.get("pipe", ALL_PIPES), direction=0xFF, prsr_id=0xFF
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def add_match(key: bfrt.TableKey, field: Field, value: Any) -> None:
    """Add a match to a key."""
    one = key.fields.add(field_id=field.id)
    if field.match == "LPM":
        one.lpm.value, one.lpm.prefix_len = value[0].to_bytes(field.size, "big"), value[1]
    elif field.match == "Ternary":
        one.ternary.value, one.ternary.mask = (part.to_bytes(field.size, "big") for part in value)
    else:
        one.exact.value = value.encode() if isinstance(value, str) else value.to_bytes(field.size, "big")


def add_value(data: bfrt.TableData, field: Field, value: Any) -> None:
    """Add a value to data."""
    one = data.fields.add(field_id=field.id)
    if field.repeated and field.type == "bool":
        one.bool_arr_val.val.extend(value)
    elif field.repeated:
        one.int_arr_val.val.extend(value)
        one.int_arr_val.SetInParent()
    elif isinstance(value, bool):
        one.bool_val = value
    elif isinstance(value, str):
        one.str_val = value
    else:
        one.stream = value.to_bytes(field.size, "big")


def value_of(field: bfrt.DataField) -> Any:
    """Return the value of a data field."""
    kind = field.WhichOneof("value")
    value = getattr(field, kind) if kind else None
    if kind == "stream":
        return int.from_bytes(value, "big")
    return list(value.val) if kind and kind.endswith("arr_val") else value


def drained(messages: queue.SimpleQueue[bfrt.StreamMessageResponse | None]) -> Iterator[bfrt.StreamMessageResponse]:
    """Return the messages that have come."""
    with suppress(queue.Empty):
        while True:
            message = messages.get_nowait()
            if message is not None:
                yield message
