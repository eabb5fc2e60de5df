# SPDX-License-Identifier: Apache-2.0
"""A device behind a BF Runtime server: a program in a data plane, its tables, and the chip's ports.

A device config's `binary` is what the data plane executes: p4c's IR, as `tests.support.tofino` translates it, or a
program for BMv2. Its `context` (context.json) tells the driver of what is not in the schema; the part of it that this
device reads is in `Context`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from p4reduce_targets.dataplane import DataPlane

from . import bfruntime_pb2 as bfrt
from .multicast import Engine, GroupTable, NodeTable
from .ports import Board, DeviceTable, PktgenPortTable, PortNameTable, Ports, PortTable
from .schema import TableSchema, fixed, parse
from .status import BfStatus, Failure
from .tables import CounterTable, Data, MatchTable, MeterTable, RegisterTable, Table

SHARED = "$SHARED"  # the name of the program that a device without one has
NAME_LIMIT, PIPELINE_LIMIT = 256, 8  # PROG_NAME_LEN, MAX_P4_PIPELINES

Load = Callable[[bytes], DataPlane]  # ValueError if it is no program


@dataclass(frozen=True)
class Default:
    """A table's default action in the program."""

    action: str
    arguments: list[int]
    constant: bool


@dataclass(frozen=True)
class Context:
    """Facts of a program that are not in its schema: the tables' default actions, and constant tables."""

    defaults: Mapping[str, Default] = field(default_factory=dict)
    constant: frozenset[str] = frozenset()

    def dump(self) -> bytes:
        """Return the text of a context.json."""
        defaults = {name: vars(default) for name, default in self.defaults.items()}
        return json.dumps({"p4reduce": {"defaults": defaults, "constant": sorted(self.constant)}}).encode()

    @classmethod
    def parse(cls, text: bytes) -> Context:
        """Read a context.json; one of the compiler has nothing for this device."""
        read = json.loads(text or b"{}").get("p4reduce", {})
        defaults = {name: Default(**default) for name, default in read.get("defaults", {}).items()}
        return cls(defaults, frozenset(read.get("constant", ())))


class Device:
    """A device with at most one program. Its methods may be called from any thread."""

    def __init__(self, board: Board, load: Load) -> None:
        self.board = board
        self.load = load
        self.lock = threading.RLock()
        self.remarks: list[str] = []  # what a client did that the drivers accept, but is probably wrong
        self.limits: dict[str, int] = {}  # of tables' entries, for tests
        self.undeliverable = 0  # frames to ports that are not up
        self.fixed_schema = fixed(board.family)
        self.config: bfrt.ForwardingPipelineConfig | None = self._nothing()
        self.on_port_change: Callable[[int, bool], None] = lambda _port, _up: None
        self._plane: DataPlane | None = None
        self._reset(None, None)

    @property
    def pipes(self) -> int:
        """Pipes of the chip."""
        return self.board.pipes

    @property
    def plane(self) -> DataPlane:
        """The data plane of the program."""
        if self._plane is None:
            raise Failure(BfStatus.NOT_READY)
        return self._plane

    def install(self, config: bfrt.ForwardingPipelineConfig) -> None:
        """Run a program instead of what there was. All tables are empty then, and no port is added.

        If it cannot be loaded, the device has nothing at all.
        """
        try:
            schema = parse(config.bfruntime_info)
            context = Context.parse(config.profiles[0].context)
            plane = self.load(config.profiles[0].binary)
        except (KeyError, IndexError, ValueError) as error:
            with self.lock:
                self.config = None
                self._reset(None, None)
            raise Failure(BfStatus.NO_SYS_RESOURCES) from error
        with self.lock:
            self.config = config
            self._reset(plane, context, schema)

    def restart(self, config: bfrt.ForwardingPipelineConfig | None) -> None:
        """Forget all, and run a program or none, as the driver does when it starts."""
        with self.lock:
            self.config = self._nothing()
            self._reset(None, None)
            self.remarks.clear()
        if config is not None:
            self.install(config)

    def _nothing(self) -> bfrt.ForwardingPipelineConfig:
        """Return the config of a device without a program (`BfRtDevMgrImpl::bfRtDeviceAdd`)."""
        return bfrt.ForwardingPipelineConfig(p4_name=SHARED, bfruntime_info=self.fixed_schema)

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Pass a frame from a port through the program; return the frames that leave, each with its port.

        Frames only pass ports that are up. A frame to another port is lost.
        """
        with self.lock:
            if self._plane is None or not self.ports.is_up(port):
                self.undeliverable += 1
                return []
            sent = self._plane.process(port, frame)
            out = [one for one in sent if self.ports.is_up(one[0])]
            self.undeliverable += len(sent) - len(out)
            return out

    def _reset(
        self, plane: DataPlane | None, context: Context | None, schema: Mapping[int, TableSchema] | None = None
    ) -> None:
        self._plane = plane
        self.ports = Ports(self.board)
        self.ports.on_change = lambda port, up: self.on_port_change(port, up)
        self.engine = Engine(self)
        schemas = {**parse(self.fixed_schema), **(schema or {})}
        made = ((identity, self._make(one, context or Context())) for identity, one in schemas.items())
        self.tables = {identity: table for identity, table in made if table is not None}

    def _make(self, schema: TableSchema, context: Context) -> Table | None:
        """Return a table, or None for a kind that is not here."""
        name = schema.name.removeprefix("pipe.")
        registers: Mapping[str, Any] = getattr(self._plane, "registers", {})
        makers: dict[str, Callable[[], Table]] = {
            "MatchAction_Direct": lambda: self._match_table(schema, context, name),
            "Counter": lambda: CounterTable(schema, self),
            "Meter": lambda: MeterTable(schema, self),
            "Register": lambda: RegisterTable(schema, self, registers.get(name)),
            "PreNode": lambda: NodeTable(schema, self, self.engine),
            "PreMgid": lambda: GroupTable(schema, self, self.engine),
            "PortConfigure": lambda: PortTable(schema, self, self.ports),
            "PortHdlInfo": lambda: PortNameTable(schema, self, self.ports),
            "PortStrInfo": lambda: PortNameTable(schema, self, self.ports),
            "PktgenPortCfg": lambda: PktgenPortTable(schema, self, self.ports),
            "DevConfigure": lambda: DeviceTable(schema, self, self.board),
        }
        return makers[schema.type]() if schema.type in makers else None

    def _match_table(self, schema: TableSchema, context: Context, name: str) -> MatchTable:
        data, default = None, context.defaults.get(name)
        if default is not None:
            action = next(one for one in schema.actions.values() if one.name == default.action)
            data = Data(action.id, dict(zip(action.data, default.arguments, strict=True)))
        return MatchTable(schema, self, data, default is not None and default.constant, name in context.constant)
