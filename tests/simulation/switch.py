# SPDX-License-Identifier: Apache-2.0
"""A switch in virtual time: the P4Runtime server's own logic around the native data plane, in one process.

Packets are processed by `native_process`, one after the other. The server's threads are replaced by the process's loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from finsy.proto import p4r, p4r_grpc

from p4reduce_targets.native.handle import Handle
from p4reduce_targets.native.loading import load
from p4reduce_targets.p4runtime.arbitration import FIRST_MESSAGE_TIMEOUT_S, Arbitration, Controller
from p4reduce_targets.p4runtime.errors import Refused, details
from p4reduce_targets.p4runtime.service import P4RuntimeService
from tests.simulation.network import Network
from tests.simulation.rpc import Server
from tests.simulation.world import EPOCH, Process, Violation, World

CPU_PORT = 510
KEEPALIVE = 25.0
JOBS, ADMIT = "jobs", "admit"


class _Abort(Exception):
    """An error: the servicer has aborted the call."""


class _Context:
    """The context of a blocking servicer."""

    def __init__(self) -> None:
        self.trailing: Any = ()
        self.status: Any = None

    def set_trailing_metadata(self, trailing: Any) -> None:
        self.trailing = trailing

    def abort(self, code: Any, text: str) -> None:
        self.status = code, text
        raise _Abort


class _Outbox:
    """A controller's queue, from which each message goes to the network at once."""

    def __init__(self, context: Any, loop: Any) -> None:
        self._context = context
        self.end = loop.create_future()

    def qsize(self) -> int:
        return 0

    def put(self, message: Any) -> None:
        if self.end.done():
            return
        if message is None or isinstance(message, Refused):
            self.end.set_result(message)
        else:
            self._context._call.reply(message.SerializeToString())


class _Servicer:
    """The P4Runtime service for a server of grpc.aio."""

    def __init__(self, service: P4RuntimeService, written: Any) -> None:
        self._service = service
        self._written = written

    async def _ask(self, method: str, request: Any, context: Any) -> Any:
        call = _Context()
        try:
            return getattr(self._service, method)(request, call)
        except _Abort:
            return await context.abort(*call.status, call.trailing)

    async def Capabilities(self, request: Any, context: Any) -> Any:
        return await self._ask("Capabilities", request, context)

    async def Write(self, request: Any, context: Any) -> Any:
        try:
            return await self._ask("Write", request, context)
        finally:
            self._written()

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        return await self._ask("SetForwardingPipelineConfig", request, context)

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        return await self._ask("GetForwardingPipelineConfig", request, context)

    async def Read(self, request: Any, context: Any) -> Any:
        call = _Context()
        try:
            replies = list(self._service.Read(request, call))
        except _Abort:
            await context.abort(*call.status, call.trailing)
        for reply in replies:
            yield reply

    async def StreamChannel(self, _: Any, context: Any) -> None:
        controller, arbitration = Controller(), self._service._arbitration
        loop = context._loop
        outbox = controller.outbox = _Outbox(context, loop)  # type: ignore[assignment]
        try:
            arbitration.join(controller)
        except Refused as error:
            await self._abort(context, error)
        silence = loop.call_later(FIRST_MESSAGE_TIMEOUT_S, self._service._end_silent_stream, controller)
        reader = loop.create_task(self._read(controller, context))
        try:
            end = await outbox.end
        finally:
            silence.cancel()
            reader.cancel()
            arbitration.leave(controller)
        if isinstance(end, Refused):
            await self._abort(context, end)

    async def _abort(self, context: Any, error: Refused) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", details(error).SerializeToString()),))
        await context.abort(error.code, error.message)

    async def _read(self, controller: Controller, context: Any) -> None:
        end: Refused | None = None
        try:
            while isinstance(message := await context.read(), p4r.StreamMessageRequest):
                self._service._handle(controller, message)
        except Refused as error:
            end = error
        controller.outbox.put(end)


class Switch:
    """A switch at an address. It implements `p4runtime.Device`.

    `ports`: for each port the name of the host there, or a switch and its port.

    `admitted` is what its table of members says: for each job number and generation, the slots, and the workers.
    """

    def __init__(self, world: World, number: int, ports: dict[int, Any]) -> None:
        self.world = world
        self.name = f"switch {number}"
        self.ip = f"10.9.0.{number}"
        self.address = f"{self.ip}:9559"
        self.ports = ports
        self.net: Network = world.net
        self.on_packet_in: Any = lambda _: None
        self.process: Process | None = None
        self.on_write: Any = lambda: None
        self.admitted: dict[tuple[int, int], tuple[range, frozenset[int]]] = {}

    # Life.

    def start(self) -> None:
        """Start it, with neither a program nor entries."""
        self.process = Process(self.world, self.name, self.ip)
        self._handle = Handle(0)
        self._plane: Any = None
        self.admitted = {}
        self.world.current = self.process
        try:
            self._service = P4RuntimeService(self, Arbitration(1))
            server = Server(self.net, keepalive=KEEPALIVE)
            p4r_grpc.add_P4RuntimeServicer_to_server(_Servicer(self._service, self._check_entries), server)
            server.add_insecure_port(self.address)
            server.begin()
        finally:
            self.world.current = None

    def kill(self) -> None:
        """Kill its process, with everything that it has."""
        assert self.process is not None
        self.process.kill()
        self.process = None
        self.admitted = {}

    # The methods of p4runtime.Device.

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        yield

    def load(self, program: bytes) -> Any:
        return load(program, CPU_PORT, self._handle)

    def run_program(self, data_plane: Any) -> None:
        self._plane = data_plane
        self._check_entries()

    def packet_out(self, frame: bytes) -> None:
        self._run(CPU_PORT, frame)

    # Packets.

    def arrive(self, port: int, frame: bytes) -> None:
        """Take a frame from the wire at a port."""
        if self.process is not None:
            self.process.soon(self._run, port, frame)

    def _run(self, port: int, frame: bytes) -> None:
        if self._plane is None:
            return
        self._plane.set_time(int((EPOCH + self.world.now) * 1e9))
        for egress, out in self._plane.process(port, frame):
            if egress == CPU_PORT:
                self.on_packet_in(out)
            elif (there := self.ports.get(egress)) is not None:
                self.net.from_switch(self.ip, there, out)

    def entries(self) -> frozenset[str]:
        """Return all entries and groups that it has."""
        pipeline = self._service._running
        if self.process is None or pipeline is None:
            return frozenset()
        everything = [
            p4r.Entity(table_entry=p4r.TableEntry()),
            p4r.Entity(
                packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                    multicast_group_entry=p4r.MulticastGroupEntry()
                )
            ),
        ]
        return frozenset(str(entity) for entity in pipeline.read(everything))

    # Invariants.

    def _check_entries(self) -> None:
        """Check that no two jobs have a slot in common."""
        pipeline = self._service._running
        admitted: dict[tuple[int, int], tuple[range, set[int]]] = {}
        for entry in _members(pipeline) if pipeline is not None else ():
            key, slots, worker = entry
            _, workers = admitted.setdefault(key, (slots, set()))
            workers.add(worker)
        self.admitted = {key: (slots, frozenset(workers)) for key, (slots, workers) in admitted.items()}
        ranges = sorted((slots.start, slots.stop, key) for key, (slots, _) in admitted.items())
        for (_, stop, one), (start, _, other) in pairwise(ranges):
            if start < stop:
                raise Violation(f"{self.name}: slot {start} is in job {one} and in job {other}")
        self.on_write()


def _members(pipeline: Any) -> Iterator[tuple[tuple[int, int], range, int]]:
    """Yield job and generation, slots and worker of each entry of the table of members."""
    info = pipeline.config.p4info
    table = next(one for one in info.tables if one.preamble.name.endswith(f".{JOBS}"))
    names = {field.id: field.name for field in table.match_fields}
    action = next(one for one in info.actions if one.preamble.name.endswith(f".{ADMIT}"))
    parameters = {one.id: one.name for one in action.params}
    for entry in pipeline._tables.read(p4r.TableEntry(table_id=table.preamble.id)):
        if entry.is_default_action or entry.action.action.action_id != action.preamble.id:
            continue
        match = {names[one.field_id]: int.from_bytes(one.exact.value, "big") for one in entry.match}
        values = {parameters[one.param_id]: int.from_bytes(one.value, "big") for one in entry.action.action.params}
        first, halves = values["pool_base"], values["pool_halves"]
        yield (match["job"], match["generation"]), range(first // 2, (first + halves) // 2), match["worker"]
