# SPDX-License-Identifier: Apache-2.0
"""A BF Runtime gRPC server for tests: it stands for the one in Intel's `bf_switchd`.

What a client observes is as the SDE's sources say, in `bf-drivers/src/bf_rt/proto`: `bf_rt_server_impl.cpp` (calls,
reads and writes) and `bf_rt_server_mgr.cpp` (clients and pipelines). Docstrings name their functions. Beyond that, a
test can make the server fail (`Faults`). Not here: learning, idle timeouts, transactions, handles, usage, and the
metadata with which a client changes deadlines and the form of errors.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

from tests.support.waiting import wait_until

from . import bfruntime_pb2 as bfrt
from .device import NAME_LIMIT, PIPELINE_LIMIT, Device
from .status import BfStatus, Failure, Refusal, explained
from .tables import Data, Table

DEVICE = 0
WORKERS = 64  # each stream has a thread
SERVICE = "bfrt_proto.BfRuntime"
COOKIE_BITS = 24  # of a client id that are left in the cookie of a callback

Config = bfrt.SetForwardingPipelineConfigRequest
Started = bfrt.SetForwardingPipelineConfigResponseType


@dataclass
class Faults:
    """Faults that tests set while the server runs."""

    slow_s: float = 0.0  # before each call is served
    hang: threading.Event = field(default_factory=threading.Event)  # calls do not end while this is set
    die_after: int | None = None  # updates of a write, before the server is gone
    install_s: float = 0.0  # that an installation takes
    refuse_install: bool = False


@dataclass
class Client:
    """A client (`ConnectionData`). One without a stream is there during its calls only."""

    number: int
    notifications: bfrt.Subscribe.Notifications = field(default_factory=bfrt.Subscribe.Notifications)
    messages: queue.SimpleQueue[bfrt.StreamMessageResponse | None] | None = None
    cancel: Callable[[], object] = lambda: None
    bound: str | None = None
    calls: int = 0  # while it has no stream

    def send(self, message: bfrt.StreamMessageResponse) -> None:
        """Send a message on the client's stream, if it has one."""
        if self.messages is not None:
            self.messages.put(message)


class Server:
    """A server in front of a device; use it as a context manager. `address` has the port that it got."""

    def __init__(self, device: Device, address: str = "127.0.0.1:0") -> None:
        self.device = device
        self.address = address
        self.faults = Faults()
        self.calls: list[str] = []  # names of the calls so far
        self._lock = threading.RLock()
        self._clients: dict[int, Client] = {}
        self.installing = False
        self._port_listener: int | None = None  # the client of the registration, as far as the cookie has it
        device.on_port_change = self._port_changed
        self._start()

    def _start(self) -> None:
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="bfrt")
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(pool, options=options)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, self._handlers())])
        host, _, _ = self.address.rpartition(":")
        port = self._server.add_insecure_port(self.address)
        self.address = f"{host}:{port}"
        self._server.start()
        wait_until(lambda: _listens(host, port), f"a server at {self.address}")  # gRPC may return before it listens

    def stop(self) -> None:
        """End all calls and streams, as a process that is killed does."""
        self.faults.hang.clear()
        self._server.stop(grace=None).wait()
        with self._lock:
            self._clients.clear()
            self._port_listener = None

    def restart(self, config: bfrt.ForwardingPipelineConfig | None = None) -> None:
        """Start again at the same address, after `stop` or instead of it; all state is gone."""
        self.stop()
        self.device.restart(config)
        self._start()

    def end_streams(self) -> None:
        """End all streams, while the server goes on."""
        with self._lock:
            for client in self._clients.values():
                client.cancel()

    @property
    def _program(self) -> str | None:
        return self.device.config.p4_name if self.device.config is not None else None

    @property
    def clients(self) -> dict[int, str | None]:
        """The clients that are subscribed, with the programs that they are bound to."""
        with self._lock:
            return {one.number: one.bound for one in self._clients.values() if one.messages is not None}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        def unary(serve: Callable[..., object], request: type, response: type) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                self._guarded(serve), request.FromString, response.SerializeToString
            )

        return {
            "Write": unary(self._write, bfrt.WriteRequest, bfrt.WriteResponse),
            "Read": grpc.unary_stream_rpc_method_handler(
                self._read_stream, bfrt.ReadRequest.FromString, bfrt.ReadResponse.SerializeToString
            ),
            "SetForwardingPipelineConfig": unary(self._set_config, Config, bfrt.SetForwardingPipelineConfigResponse),
            "GetForwardingPipelineConfig": unary(
                self._get_config,
                bfrt.GetForwardingPipelineConfigRequest,
                bfrt.GetForwardingPipelineConfigResponse,
            ),
            "StreamChannel": grpc.stream_stream_rpc_method_handler(
                self._stream, bfrt.StreamMessageRequest.FromString, bfrt.StreamMessageResponse.SerializeToString
            ),
        }

    def _guarded(self, serve: Callable[..., object]) -> Callable[..., object]:
        def guarded(request: object, context: grpc.ServicerContext) -> object:
            self._begin(serve.__name__.strip("_"))
            try:
                return serve(request, context)
            except Refusal as refusal:
                context.abort(refusal.status.value[1], refusal.message)

        return guarded

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        time.sleep(self.faults.slow_s)
        while self.faults.hang.is_set():
            time.sleep(0.01)

    # Clients

    def _stream(
        self, requests: Iterator[bfrt.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[bfrt.StreamMessageResponse]:
        """Serve a client's stream, whose end is the client's end (`StreamChannel`)."""
        messages: queue.SimpleQueue[bfrt.StreamMessageResponse | None] = queue.SimpleQueue()
        refused: list[Refusal] = []
        served: list[int] = []

        def read() -> None:
            try:
                for request in requests:
                    if request.WhichOneof("update") == "digest_ack":
                        raise Refusal(BfStatus.NOT_SUPPORTED, "Not yet implemented")
                    if request.HasField("subscribe") and not served:
                        self._subscribe(request, messages, context.cancel)
                        served.append(request.client_id)
                        answer = bfrt.StreamMessageResponse()
                        answer.subscribe.status.code = 0
                        messages.put(answer)
            except Refusal as refusal:
                refused.append(refusal)
            except Exception:
                pass
            messages.put(None)

        self._begin("stream")
        context.add_callback(lambda: messages.put(None))
        threading.Thread(target=read, daemon=True).start()
        try:
            while (message := messages.get()) is not None:
                yield message
        finally:
            with self._lock:
                # After a stream that ended before it subscribed, the server removes client 0.
                for number in [] if refused else served or [0]:
                    self._clients.pop(number, None)
        if refused:
            context.abort(refused[0].status.value[1], refused[0].message)

    def _subscribe(
        self,
        request: bfrt.StreamMessageRequest,
        messages: queue.SimpleQueue[bfrt.StreamMessageResponse | None],
        cancel: Callable[[], object],
    ) -> None:
        """Add a client with a stream (`addConnection`)."""
        with self._lock:
            known = self._clients.get(request.client_id)
            if known is not None and known.messages is not None:
                raise Refusal(BfStatus.INVALID_ARG, "Can't have two clients with the same client id")
            client = Client(request.client_id, request.subscribe.notifications, messages, cancel)
            self._clients[request.client_id] = client

    def _client(self, number: int) -> Client:
        """Return a client; one without a stream is there from now on until `_done`.

        The server forgets that after a call that it refuses as a whole: then such a client stays for good.
        """
        with self._lock:
            client = self._clients.setdefault(number, Client(number))
            client.calls += 1
            return client

    def _done(self, client: Client) -> None:
        """Remove a client without a stream at the end of its last call (`cleanupConnection`)."""
        with self._lock:
            client.calls -= 1
            if client.messages is None and client.calls == 0:
                self._clients.pop(client.number, None)

    # Pipelines

    def _get_config(
        self, request: bfrt.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> bfrt.GetForwardingPipelineConfigResponse:
        """Return the device's program (`readFromDisk`). One without a program has "$SHARED", with a fixed schema."""
        self._check_lock("read", request.client_id)
        client = self._client(request.client_id)
        if request.device_id != DEVICE:
            context.abort(grpc.StatusCode.UNKNOWN, "Unexpected error in RPC handling")  # an exception of the server
        answer = bfrt.GetForwardingPipelineConfigResponse()
        answer.non_p4_config.bfruntime_info = self.device.fixed_schema
        with self.device.lock:
            if self.device.config is not None:
                answer.config.add().CopyFrom(self.device.config)
        self._done(client)
        return answer

    def _set_config(self, request: Config, _context: grpc.ServicerContext) -> bfrt.SetForwardingPipelineConfigResponse:
        """Bind a client, or install a program (`SetForwardingPipelineConfig`)."""
        if request.action == Config.BIND:
            self._check_lock("read", request.client_id)
            with self._lock:
                self._bind(request)
        else:
            self._install(request)
        return bfrt.SetForwardingPipelineConfigResponse()

    def _bind(self, request: Config) -> None:
        """Bind a client to the program that runs (`forwardingConfigBind`)."""
        client = self._clients.get(request.client_id)
        if client is None:
            raise Refusal(BfStatus.NOT_READY, f"Unknown client. Client_id:{signed(request.client_id)}")
        if len(request.config) != 1:
            raise Refusal(BfStatus.INVALID_ARG, "Exactly one config message required.")
        name = request.config[0].p4_name
        for other in sorted(self._clients.values(), key=lambda one: one.number):
            if other.bound == name:
                text = f"Client ID {signed(client.number)} trying to bind but Client ID {signed(other.number)}"
                raise Refusal(BfStatus.ALREADY_EXISTS, f"{text} already owns this P4")
        if request.device_id != DEVICE or name != self._program:
            raise Refusal(BfStatus.OBJECT_NOT_FOUND, f"Failed to find BfRtInfo for program {name}")
        client.bound = name

    def _install(self, request: Config) -> None:
        """Install a program (`forwardingConfigSet`). The client must bind to it afterwards."""
        client = self._client(request.client_id)
        self._check_config(request)
        if request.action == Config.RECONCILE_AND_WARM_INIT_END:
            raise Refusal(BfStatus.NOT_SUPPORTED, "Reconcile and warmInitEnd not supported")
        if request.action not in (Config.VERIFY, Config.VERIFY_AND_WARM_INIT_BEGIN_AND_END):
            raise Refusal(BfStatus.NOT_SUPPORTED, "This server of tests begins and ends at once only")
        if request.action == Config.VERIFY_AND_WARM_INIT_BEGIN_AND_END:
            with self._lock:
                if client.notifications.enable_port_status_change_notifications:
                    self._port_listener = None
                self.installing = True
            try:
                time.sleep(self.faults.install_s)
                self._replace(request.config[0])
            finally:
                self.installing = False
        self._done(client)

    def _replace(self, config: bfrt.ForwardingPipelineConfig) -> None:
        """Replace the program, and end the streams of clients bound to the one that is gone (`refreshConnections`)."""
        try:
            self.device.install(bfrt.ForwardingPipelineConfig() if self.faults.refuse_install else config)
        except Failure:  # the server overwrites this error by that of the next step
            raise Refusal(BfStatus.OBJECT_NOT_FOUND, f"Failed to find p4 program for device {DEVICE}") from None
        self._notify(Started.WARM_INIT_STARTED)
        self._notify(Started.WARM_INIT_FINISHED)
        with self._lock:
            for client in self._clients.values():
                if client.bound not in (None, config.p4_name):
                    client.bound = None
                    client.cancel()

    def _check_config(self, request: Config) -> None:
        """Refuse a config that no device can have (`DeviceForwardingConfig`)."""
        names = [config.p4_name for config in request.config]
        valid = request.device_id == DEVICE and len(set(names)) == len(names) == 1
        for config in request.config:
            pipes = [pipe for profile in config.profiles for pipe in profile.pipe_scope]
            profiles = [profile.profile_name for profile in config.profiles]
            valid &= len(config.p4_name) < NAME_LIMIT and all(len(name) < NAME_LIMIT for name in profiles)
            valid &= len(set(pipes)) == len(pipes) and len(set(profiles)) == len(profiles)
            valid &= all(len(profile.pipe_scope) <= PIPELINE_LIMIT for profile in config.profiles)
        if not valid:
            raise Refusal(BfStatus.INVALID_ARG, "Invalid device config sent")

    def _notify(self, what: Started.ValueType) -> None:
        message = bfrt.StreamMessageResponse()
        message.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type = what
        with self._lock:
            for client in self._clients.values():
                client.send(message)

    def _check_lock(self, kind: str, number: int) -> None:
        """Refuse a call during an installation; the readers' lock does not wait for the writer."""
        if self.installing:
            raise Refusal(BfStatus.IN_USE, f"Failed to acquire {kind} lock for client {signed(number)}")

    # Writes

    def _write(self, request: bfrt.WriteRequest, context: grpc.ServicerContext) -> bfrt.WriteResponse:
        """Do all updates, and report each that failed (`Write`)."""
        self._check_lock("read", request.client_id)
        client = self._client(request.client_id)
        self._check_program(client, request.target.device_id, request.p4_name)
        if request.atomicity == bfrt.WriteRequest.ROLLBACK_ON_ERROR:  # the SDE has transactions
            raise Refusal(BfStatus.NOT_IMPLEMENTED, "The server of the tests has no transactions")
        if request.atomicity == bfrt.WriteRequest.DATAPLANE_ATOMIC:
            raise Refusal(BfStatus.NOT_IMPLEMENTED, "DATAPLANE_ATOMIC isn't implemented")
        response = bfrt.WriteResponse()
        errors: dict[int, Refusal] = {}
        for index, update in enumerate(request.updates):
            if self.faults.die_after is not None and index >= self.faults.die_after:
                self._die(context)
            try:
                with self.device.lock:
                    self._update(client, request.target, update, response)
            except Refusal as refusal:
                errors[index] = refusal
        self._done(client)
        _report(context, "Write Error Status", errors)
        return response

    def _die(self, context: grpc.ServicerContext) -> None:
        threading.Thread(target=self.stop, daemon=True).start()
        while context.is_active():
            time.sleep(0.01)
        raise Refusal(BfStatus.IN_USE, "the server is gone")

    def _check_program(self, client: Client, device: int, name: str) -> None:
        """Find the program of a call (`getBfRtInfo`, `getBfRtInfoIndependent`)."""
        if client.messages is None or name:
            if device != DEVICE or name != self._program:
                raise Refusal(BfStatus.OBJECT_NOT_FOUND, f"Unable to obtain BF_RT info for ({name})")
        elif client.bound is None:
            raise Refusal(BfStatus.UNEXPECTED, "Unable to get bound_program")
        elif device != DEVICE:
            text = (
                f"The device id retrieved for this client connection ({DEVICE}) does not match the device id {device}"
            )
            raise Refusal(BfStatus.INVALID_ARG, f"{text} passed in")

    def _update(
        self, client: Client, target: bfrt.TargetDevice, update: bfrt.Update, response: bfrt.WriteResponse
    ) -> None:
        kind = update.entity.WhichOneof("entity")
        if kind == "table_entry" or (kind is None and update.type == bfrt.Update.DELETE):
            entry = update.entity.table_entry
            self._write_entry(entry.entry_tgt if entry.HasField("entry_tgt") else target, update.type, entry, response)
        elif kind == "table_attribute":
            self._write_attribute(client, update.entity.table_attribute)
        elif kind == "table_operation":
            self._operate(update.entity.table_operation)
        elif kind == "table_usage":
            raise Refusal(BfStatus.NOT_SUPPORTED, "Write operation not available on TableUsage")
        else:
            raise Refusal(BfStatus.NOT_SUPPORTED, "Invalid update.")

    def _table(self, number: int, text: str | None = None) -> Table:
        table = self.device.tables.get(number)
        if table is None:
            raise Refusal(BfStatus.OBJECT_NOT_FOUND, text or f"Table not found for id {number}")
        return table

    def _write_entry(
        self, target: bfrt.TargetDevice, kind: int, entry: bfrt.TableEntry, response: bfrt.WriteResponse
    ) -> None:
        """Do an update of an entry (`write_entry`)."""
        table = self._table(entry.table_id)
        default = entry.is_default_entry
        if default and entry.key.fields:
            raise Refusal(BfStatus.INVALID_ARG, "Non-empty key for default entry")
        key = None
        if entry.HasField("key"):
            if not table.schema.key:
                raise Refusal(BfStatus.NOT_SUPPORTED, f"Table key allocation failed. table:{table.name}")
            key = table.make_key(entry.key)
        data: Data
        if entry.HasField("data"):
            data = table.make_data(entry)
        else:
            with explained(f"ERROR Unable to allocate empty data object for table : {table.name}"):
                data = table.allocate(0, [])
        data.reset_stats = entry.table_flags.reset_stats
        if kind == bfrt.Update.UNSPECIFIED:
            raise Refusal(BfStatus.INVALID_ARG, "Unspecified update type")
        if kind == bfrt.Update.INSERT and default:
            text = "INSERT of default entry is not supported. Please use MODIFY instead"
            raise Refusal(BfStatus.NOT_SUPPORTED, f"{text} table:{table.name}")
        needs_key = kind in (bfrt.Update.INSERT, bfrt.Update.INSERT_OR_MODIFY, bfrt.Update.MODIFY_INC)
        if key is None and (needs_key or (kind == bfrt.Update.MODIFY and not default)):
            raise Refusal(BfStatus.INVALID_ARG, f"Table key cannot be empty table:{table.name}")
        if kind == bfrt.Update.INSERT:
            with explained(f"Table Add failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.add(key, data)
        elif kind == bfrt.Update.MODIFY and default:
            with explained(f"Table Default entry set failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.set_default(data)
        elif kind == bfrt.Update.MODIFY:
            with explained(f"Table Entry modify failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.modify(key, data)
        elif kind == bfrt.Update.MODIFY_INC:
            flags = bfrt.TableModIncFlag
            remove = entry.table_flags.mod_del or entry.table_mod_inc_flag.type == flags.MOD_INC_DELETE
            with explained(f"Table Entry modify incremental failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.modify_incrementally(key, data, remove)
        elif kind == bfrt.Update.DELETE and default:
            with explained(f"Table Default Entry reset failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.reset_default()
        elif kind == bfrt.Update.DELETE and key is not None:
            with explained(f"Table Entry delete failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.delete(key)
        elif kind == bfrt.Update.DELETE:
            with explained(f"Table Entry delete all failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                table.clear()
        elif kind == bfrt.Update.RESET:  # no table here has `tableEntryReset`
            raise Refusal(BfStatus.NOT_SUPPORTED, f"Table Default Entry reset failed table:{table.name}")
        elif kind == bfrt.Update.INSERT_OR_MODIFY:
            with explained(f"Table AddOrMod failed table:{table.name}"):
                table.check_pipe(target.pipe_id)
                added = table.add_or_modify(key, data)
            if not added:
                response.status.add(message="Entry aleady exists, perform MODIFY", code=BfStatus.ALREADY_EXISTS.code)
        else:
            raise Refusal(BfStatus.INVALID_ARG, "Invalid update type")

    def _operate(self, operation: bfrt.TableOperation) -> None:
        """Execute an operation; the server waits for its end (`write_operation`)."""
        table = self._table(operation.table_id, "Table not found")
        longer = "SyncRegisters" if table.schema.type == "Register" else "SyncCounters"
        if not table.schema.operations or operation.table_operations_type not in ("Sync", longer):
            raise Refusal(BfStatus.NOT_SUPPORTED, "Operation not supported")
        with explained("Operation execute failed"):
            table.synchronize()

    def _write_attribute(self, client: Client, attribute: bfrt.TableAttribute) -> None:
        """Set an attribute; only that of `$PORT` is here (`setAttributePortStatusChgNotify`)."""
        table = self._table(attribute.table_id, "Table not found.")
        if attribute.WhichOneof("attribute") != "port_status_notify":
            raise Refusal(BfStatus.INVALID_ARG, "Invalid Attribute Type.")
        if table.name != "$PORT":
            raise Refusal(BfStatus.NOT_SUPPORTED, "Failed to allocate Attribute for port status change notify")
        if not client.notifications.enable_port_status_change_notifications:
            text = f"Port status change notifications are not enabledfor client {signed(client.number)}"
            raise Refusal(BfStatus.INVALID_ARG, text)
        enable = attribute.port_status_notify.enable
        with self._lock:
            self._port_listener = client.number & (1 << COOKIE_BITS) - 1 if enable else None

    def _port_changed(self, port: int, up: bool) -> None:
        """Notify the one client that is registered, if it is bound (`portstatuschg_callback`)."""
        table = next(one for one in self.device.tables.values() if one.name == "$PORT")
        message = bfrt.StreamMessageResponse()
        notification = message.port_status_change_notification
        notification.port_up = up
        notification.table_entry.table_id = table.schema.id
        notification.table_entry.key.CopyFrom(table.key_message((port,)))
        with self._lock:
            client = self._clients.get(-1 if self._port_listener is None else self._port_listener)
            if client is not None and client.bound is not None:
                client.send(message)

    # Reads

    def _read_stream(self, request: bfrt.ReadRequest, context: grpc.ServicerContext) -> Iterator[bfrt.ReadResponse]:
        """Read all entities into one message, and report each that failed (`Read`)."""
        self._begin("read")
        try:
            client = self._client(request.client_id)
            self._check_lock("read", request.client_id)
            self._check_program(client, request.target.device_id, request.p4_name)
        except Refusal as refusal:
            context.abort(refusal.status.value[1], refusal.message)
        response = bfrt.ReadResponse()
        errors: dict[int, Refusal] = {}
        for index, entity in enumerate(request.entities):
            try:
                with self.device.lock:
                    self._read_entity(request.target, entity, response)
            except Refusal as refusal:
                errors[index] = refusal
        yield response
        self._done(client)
        _report(context, "Read Error Status", errors)

    def _read_entity(self, target: bfrt.TargetDevice, entity: bfrt.Entity, response: bfrt.ReadResponse) -> None:
        kind = entity.WhichOneof("entity")
        if kind == "table_entry":
            entry = entity.table_entry
            pipe = (entry.entry_tgt if entry.HasField("entry_tgt") else target).pipe_id
            if entry.WhichOneof("value"):
                self._read_one(entry, pipe, response)
            elif entry.is_default_entry:
                self._read_default(entry, response)
            else:
                self._read_all(entry, pipe, response)
        elif kind == "table_operation":
            raise Refusal(BfStatus.NOT_SUPPORTED, "Read operation not available on TableOperation")
        else:
            raise Refusal(BfStatus.INVALID_ARG, "Invalid Read entity received")

    def _read_one(self, wanted: bfrt.TableEntry, pipe: int, response: bfrt.ReadResponse) -> None:
        """Read the entry of a key (`table_read`)."""
        table = self._table(wanted.table_id)
        if not table.schema.key:
            raise Refusal(BfStatus.NOT_SUPPORTED, f"Table key allocation failed. table:{table.name}")
        key = table.make_key(wanted.key)
        fields = [one.field_id for one in wanted.data.fields]
        with explained(f"Data Allocate failed during entry read table:{table.name}"):
            asked = table.allocate(wanted.data.action_id, fields)
        asked.from_hw = _from_hw(wanted)
        with explained(f"Entry not found in table:{table.name}"):
            table.check_pipe(pipe, asked)
            data = table.get(key, asked)
        entry = response.entities.add().table_entry
        entry.table_id = wanted.table_id
        _copy_target(wanted, entry)
        entry.table_read_flag.SetInParent()
        entry.table_flags.SetInParent()
        entry.key.CopyFrom(table.key_message(key))
        entry.data.CopyFrom(table.data_message(data, fields))

    def _read_all(self, wanted: bfrt.TableEntry, pipe: int, response: bfrt.ReadResponse) -> None:
        """Read all entries, then the default entry (`read_entry`, `table_read_all`)."""
        try:
            self._read_entries(wanted, pipe, response)
        except Refusal:
            self._try_default(wanted, response)
            raise
        self._try_default(wanted, response)

    def _try_default(self, wanted: bfrt.TableEntry, response: bfrt.ReadResponse) -> None:
        with suppress(Refusal):  # ignored in a wildcard read
            self._read_default(wanted, response)

    def _read_entries(self, wanted: bfrt.TableEntry, pipe: int, response: bfrt.ReadResponse) -> None:
        table = self._table(wanted.table_id)
        action, fields = wanted.data.action_id, [one.field_id for one in wanted.data.fields]
        if not table.schema.key:
            raise Refusal(BfStatus.NOT_SUPPORTED, f"Table key allocation failed. table:{table.name}")
        with explained(f"Data Allocate failed during entry read table:{table.name}"):
            asked = table.allocate(0, fields)
        asked.from_hw = _from_hw(wanted)
        with explained(f"Error getting first entry of table:{table.name}"):
            table.check_pipe(pipe, asked)
            keys = table.keys()
        for position, key in enumerate(keys):
            with explained(f"Get last entries failed table:{table.name}"):
                data = table.get(key, asked)
            if action and data.action != action and position == 0:
                continue
            entry = response.entities.add().table_entry
            entry.table_id = wanted.table_id
            _copy_target(wanted, entry)
            if action and data.action != action:
                continue  # the server leaves the entry empty
            entry.key.CopyFrom(table.key_message(key))
            entry.data.CopyFrom(table.data_message(data, fields))

    def _read_default(self, wanted: bfrt.TableEntry, response: bfrt.ReadResponse) -> None:
        """Read the default entry; tables without one have nothing to say (`table_read_default_entry`)."""
        table = self._table(wanted.table_id)
        if not table.has_default:
            return
        fields = [one.field_id for one in wanted.data.fields]
        with explained(f"Data Allocate failed during default entry read table:{table.name}"):
            asked = table.allocate(wanted.data.action_id, fields)
        try:
            data = table.get_default(asked)
        except Failure as failure:
            if failure.status is BfStatus.OBJECT_NOT_FOUND:
                return
            raise Refusal(failure.status, f"Error getting default entry of table:{table.name}") from None
        entry = response.entities.add().table_entry
        entry.is_default_entry = True
        entry.table_id = wanted.table_id
        _copy_target(wanted, entry)
        entry.data.CopyFrom(table.data_message(data, fields))


def _from_hw(entry: bfrt.TableEntry) -> bool:
    return entry.table_read_flag.from_hw or entry.table_flags.from_hw


def _listens(host: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def _copy_target(wanted: bfrt.TableEntry, entry: bfrt.TableEntry) -> None:
    """Answer with the target of a request that has one."""
    if wanted.HasField("entry_tgt"):
        entry.entry_tgt.CopyFrom(wanted.entry_tgt)


def _report(context: grpc.ServicerContext, text: str, errors: dict[int, Refusal]) -> None:
    """End a call with the errors of its parts: one each, up to the last that failed (`BfRtServerErrorReporter`)."""
    if not errors:
        return
    status = bfrt.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=text)
    for index in range(max(errors) + 1):
        error = bfrt.Error()
        if index in errors:
            error.canonical_code, error.message = errors[index].status.code, errors[index].message
        status.details.add().Pack(error)
    context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
    context.abort(grpc.StatusCode.UNKNOWN, text)


def signed(number: int) -> int:
    """Return a number as C's %d prints it."""
    return number - (1 << 32) if number >> 31 else number
