# SPDX-License-Identifier: Apache-2.0
"""The ports of a device, and the tables of them (`bf_rt_port`, `bf_rt_pktgen`, `bf_rt_dev`, bf_pm).

A port's name is CONNECTOR/CHANNEL. Which connector leads to which device port is the board's choice. The board here
counts pipe by pipe, and has the CPU's Ethernet port behind the last connector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .schema import TableSchema
from .status import BfStatus, Failure
from .tables import Data, Table, TableKey, Tables, integer

SPEEDS = {"1G": 1, "10G": 1, "25G": 1, "40G": 4, "50G": 2, "100G": 4, "200G": 4, "400G": 8}  # default lanes
FECS = {"NONE": "NONE", "FIRECODE": "FC", "FC": "FC", "REED_SOLOMON": "RS", "RS": "RS"}
AUTONEGOTIATION = ("PM_AN_DEFAULT", "PM_AN_FORCE_ENABLE", "PM_AN_FORCE_DISABLE")
PIPE_PORTS = 128
JUMBO = 10240  # a port's MTU at first


@dataclass(frozen=True)
class Board:
    """A chip with its ports. `family` is tf1 or tf2."""

    family: str
    pipes: int

    @property
    def lanes(self) -> int:
        """Channels of a connector."""
        return 4 if self.family == "tf1" else 8

    @property
    def connectors(self) -> int:
        """Connectors of the front panel."""
        return self.pipes * (16 if self.family == "tf1" else 8)

    @property
    def cpu_ports(self) -> list[int]:
        """Channels of the CPU's Ethernet port."""
        return [64, 65, 66, 67] if self.family == "tf1" else [2, 3, 4, 5]

    @property
    def pcie_port(self) -> int:
        """The port of packets that the chip's driver passes on (`lld_get_pcie_cpu_port`)."""
        return (320 if self.pipes > 2 else 192) if self.family == "tf1" else 0

    @property
    def recirculation_ports(self) -> list[int]:
        """Ports of each pipe that can recirculate: those that are neither the front panel's nor the CPU's."""
        local = range(64, 72) if self.family == "tf1" else (0, 1, 6, 7)
        ports = [pipe * PIPE_PORTS + one for pipe in range(self.pipes) for one in local]
        pcie = range(self.pcie_port, self.pcie_port + 4) if self.family == "tf1" else ()
        return [port for port in ports if port not in pcie and port not in self.cpu_ports]

    def names(self) -> dict[str, int]:
        """Return the ports by their names."""
        first = 0 if self.family == "tf1" else 8
        each = self.connectors // self.pipes
        made = {}
        for connector in range(self.connectors):
            pipe, position = divmod(connector, each)
            for channel in range(self.lanes):
                port = pipe * PIPE_PORTS + first + position * self.lanes + channel
                made[f"{connector + 1}/{channel}"] = port
        made |= {f"{self.connectors + 1}/{channel}": port for channel, port in enumerate(self.cpu_ports)}
        return made


BOARDS = {"tofino1": Board("tf1", 2), "tofino1-64": Board("tf1", 4), "tofino2": Board("tf2", 4)}


@dataclass
class Port:
    """A port that was added."""

    speed: str
    fec: str
    lanes: int
    enabled: bool = False
    values: dict[int, Any] = field(default_factory=dict)  # the rest, by field


class Ports:
    """The ports of a device. One is up if it is enabled and its link partner is there, as all are at first."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.names = board.names()
        self.numbers = {number: name for name, number in self.names.items()}
        self.added: dict[int, Port] = {}
        self.recirculating: set[int] = set()
        self.refused: set[int] = set()  # ports that a test makes fail
        self.on_change: Callable[[int, bool], None] = lambda _port, _up: None
        self._without_partner: set[int] = set()

    def is_up(self, number: int) -> bool:
        """Return whether packets pass. They always do through the port of the PCIe bus."""
        if number == self.board.pcie_port:
            return True
        port = self.added.get(number)
        return port is not None and port.enabled and number not in self._without_partner

    def set_partner(self, number: int, present: bool) -> None:
        """Plug or unplug the link partner of a port."""
        before = self.is_up(number)
        (self._without_partner.discard if present else self._without_partner.add)(number)
        self.tell(number, before)

    def tell(self, number: int, before: bool) -> None:
        """Tell of a change."""
        if self.is_up(number) != before:
            self.on_change(number, not before)

    def check(self, number: int, speed: str, lanes: int, fec: str) -> None:
        """Refuse what a port cannot do (`pm_port_valid_speed_and_channel_internal`)."""
        channel = int(self.numbers[number].partition("/")[2])
        first = self.board.family == "tf1"
        starts = {4: (0, 4), 2: (0, 2, 4, 6), 8: (0,)}.get(lanes, tuple(range(8)))
        fits = channel in starts and channel + lanes <= self.board.lanes and lanes > 0
        wanted = {
            "400G": not first and lanes == 8 and fec == "RS",
            "200G": not first and lanes in (4, 8) and fec == "RS",
            "100G": (lanes == 4 and fec != "FC") or (not first and lanes == 2 and fec == "RS"),
            "50G": lanes == 2 or (not first and lanes == 1 and fec == "RS"),
            "40G": lanes == 4 and fec != "RS",
            "25G": lanes == 1,
            "10G": lanes == 1 and fec != "RS",
            "1G": not first and lanes == 1 and fec == "NONE",
        }
        if not fits or not wanted.get(speed, False):
            raise Failure(BfStatus.INVALID_ARG)
        connector = self.numbers[number].partition("/")[0]
        for other, port in self.added.items():
            name, _, start = self.numbers[other].partition("/")
            if name == connector and int(start) < channel + lanes and channel < int(start) + port.lanes:
                raise Failure(BfStatus.INVALID_ARG)


SPEED, FEC, LANES, ENABLE, AN, LOOPBACK, TX_MTU, RX_MTU = range(1, 9)  # fields of $PORT
DIRECTION, MEDIA = 14, 15
VALID, INTERNAL, CONNECTOR, CHANNEL, UP, NAME = range(21, 27)


class PortTable(Table):
    """The table `$PORT` (`BfRtPortCfgTable`)."""

    def __init__(self, schema: TableSchema, device: Tables, ports: Ports) -> None:
        super().__init__(schema, device)
        self.ports = ports

    def set_value(self, data: Data, number: int, kind: str, value: Any) -> None:
        """Set a field. Any text is accepted here; the add or the modification looks at it."""
        declared = self.schema.data.get(number)
        if declared is None:
            raise Failure(BfStatus.INVALID_ARG)
        if kind != {"bool": "bool_val", "string": "str_val", "float": "float_val"}.get(declared.type, "stream"):
            raise Failure(BfStatus.NOT_SUPPORTED)
        if not data.everything and (number not in data.active or number in data.values):
            raise Failure(BfStatus.INVALID_ARG)
        data.values[number] = integer(declared, value) if kind == "stream" else value

    def add(self, key: TableKey, data: Data) -> None:
        """Add a port. One that was added before stays as it is, but for the fields that can be modified."""
        (number,) = key
        speed, fec = self._speed(data.values.get(SPEED)), self._fec(data.values.get(FEC))
        if number not in self.ports.numbers:  # bf_pm_port_dev_port_to_front_panel_port_get
            raise Failure(BfStatus.INVALID_ARG)
        if number in self.ports.added:  # bf_pm_port_add_with_lanes
            port = self.ports.added[number]
            if (speed, fec) != (port.speed, port.fec):
                self.device.remarks.append(f"{self.name}: port {number} is added again with another speed or FEC")
        else:
            if number in self.ports.refused:
                raise Failure(BfStatus.HW_COMM_FAIL)
            lanes = data.values.get(LANES, SPEEDS.get(speed, 0))
            self.ports.check(number, speed, lanes, fec)
            self.ports.added[number] = Port(speed, fec, lanes)
        self._configure(number, data)

    def modify(self, key: TableKey, data: Data) -> None:
        """Change a port. What fails after speed and FEC is only in the log."""
        (number,) = key
        port = self.ports.added.get(number)
        if SPEED in data.values:
            speed = self._speed(data.values[SPEED])
            if number not in self.ports.numbers:
                raise Failure(BfStatus.INVALID_ARG)
            lanes = data.values.get(LANES, SPEEDS.get(speed, 0))
            others = Ports(self.ports.board)
            others.added = {one: other for one, other in self.ports.added.items() if one != number}
            others.check(number, speed, lanes, port.fec if port else "NONE")
            if port:
                port.speed, port.lanes = speed, lanes
                self._enable(number, True)
        if FEC in data.values:
            fec = self._fec(data.values[FEC])
            if port is None:
                raise Failure(BfStatus.INVALID_ARG)
            port.fec = fec
        self._configure(number, data)

    def add_or_modify(self, key: TableKey, data: Data) -> bool:
        """Add a port, or modify it."""
        if key[0] in self.ports.added:
            self.modify(key, data)
            return False
        self.add(key, data)
        return True

    def delete(self, key: TableKey) -> None:
        """Remove a port; that it was not added is no error (`bf_pm_port_delete`)."""
        (number,) = key
        if number not in self.ports.numbers:
            raise Failure(BfStatus.INVALID_ARG)
        before = self.ports.is_up(number)
        self.ports.added.pop(number, None)
        self.ports.tell(number, before)

    def clear(self) -> None:
        """Remove all ports."""
        for number in list(self.ports.added):
            self.delete((number,))

    def get(self, key: TableKey, wanted: Data) -> Data:
        """Return a port that was added, or one for recirculation, which nobody adds (`tableEntryGet_internal`)."""
        (number,) = key
        recirculates = number in self.ports.board.recirculation_ports
        port = Port("NONE", "NONE", 1, enabled=True) if recirculates else self.ports.added.get(number)
        if port is None:
            raise Failure(BfStatus.OBJECT_NOT_FOUND)
        name = self.ports.numbers.get(number, "recirc")
        values = {
            AN: "PM_AN_DEFAULT",
            LOOPBACK: "BF_LPBK_NONE",
            TX_MTU: JUMBO,
            RX_MTU: JUMBO,
            DIRECTION: "PM_PORT_DIR_DEFAULT",
            MEDIA: "BF_MEDIA_TYPE_UNKNOWN",
            **port.values,
            SPEED: f"BF_SPEED_{port.speed}",
            FEC: {"NONE": "BF_FEC_TYP_NONE", "FC": "BF_FEC_TYP_FC", "RS": "BF_FEC_TYP_REED_SOLOMON"}[port.fec],
            LANES: port.lanes,
            ENABLE: port.enabled,
            VALID: True,
            INTERNAL: number in self.ports.board.cpu_ports,
            UP: recirculates or self.ports.is_up(number),
            NAME: name,
        }
        if not recirculates:
            values[CONNECTOR], values[CHANNEL] = map(int, name.split("/"))
        return Data(0, values, set(self.schema.data) if wanted.everything else wanted.active)

    def keys(self) -> Iterable[TableKey]:
        """Return the ports that were added."""
        return [(number,) for number in sorted(self.ports.added)]

    def _speed(self, text: str | None) -> str:
        speed = (text or "").removeprefix("BF_SPEED_")
        if not (text or "").startswith("BF_SPEED_") or speed not in (*SPEEDS, "NONE"):
            raise Failure(BfStatus.INVALID_ARG)
        return speed

    def _fec(self, text: str | None) -> str:
        fec = (text or "").removeprefix("BF_FEC_TYP_")
        if not (text or "").startswith("BF_FEC_TYP_") or fec not in FECS:
            raise Failure(BfStatus.INVALID_ARG)
        return FECS[fec]

    def _configure(self, number: int, data: Data) -> None:
        """Set the other fields (`tableEntryMod_internal`)."""
        if data.values.get(AN, "PM_AN_DEFAULT") not in AUTONEGOTIATION:
            raise Failure(BfStatus.INVALID_ARG)
        port = self.ports.added.get(number)
        if port is None:
            self.device.remarks.append(f"{self.name}: port {number} is modified, but was not added")
            return
        port.values |= {one: value for one, value in data.values.items() if one not in (SPEED, FEC, LANES, ENABLE)}
        if ENABLE in data.values:
            self._enable(number, data.values[ENABLE])

    def _enable(self, number: int, enabled: bool) -> None:
        before = self.ports.is_up(number)
        self.ports.added[number].enabled = enabled
        self.ports.tell(number, before)


class PortNameTable(Table):
    """The tables `$PORT_STR_INFO` and `$PORT_HDL_INFO`, which have the device port of a name."""

    partial = True

    def __init__(self, schema: TableSchema, device: Tables, ports: Ports) -> None:
        super().__init__(schema, device)
        self.ports = ports

    def get(self, key: TableKey, wanted: Data) -> Data:
        """Return the port of a name; one that the board does not have is an invalid argument."""
        if wanted.from_hw:
            raise Failure(BfStatus.NOT_SUPPORTED)
        name = key[0] if len(key) == 1 else f"{key[0]}/{key[1]}"
        if name not in self.ports.names:
            raise Failure(BfStatus.INVALID_ARG)
        return Data(0, {1: self.ports.names[name]}, set(self.schema.data))

    def keys(self) -> Iterable[TableKey]:
        """Return all names."""
        names = list(self.ports.names)
        return [(name,) if len(self.schema.key) == 1 else tuple(map(int, name.split("/"))) for name in names]


class PktgenPortTable(Table):
    """The table `pktgen.port_cfg` (`BfRtPktgenPortTable`), of which only recirculation is here."""

    def __init__(self, schema: TableSchema, device: Tables, ports: Ports) -> None:
        super().__init__(schema, device)
        self.ports = ports

    def set_value(self, data: Data, number: int, kind: str, value: Any) -> None:
        """Set a field."""
        if kind != "bool_val":
            raise Failure(BfStatus.NOT_SUPPORTED)
        if number not in self.schema.data:
            raise Failure(BfStatus.INVALID_ARG)
        data.values[number] = value

    def modify(self, key: TableKey, data: Data) -> None:
        """Enable or disable recirculation. Ports 68 to 71 of Tofino 1 always recirculate (`bf_recirculation_set`)."""
        (number,) = key
        self._check(number)
        if data.values.get(1, self.recirculates(number)) == self.recirculates(number):
            return
        if not self._can(number):
            raise Failure(BfStatus.INVALID_ARG)
        if any(one // 4 == number // 4 for one in self.ports.added):  # pipe_mgr_tof_set_recirc_16_en
            raise Failure(BfStatus.IN_USE)
        (self.ports.recirculating.add if data.values[1] else self.ports.recirculating.discard)(number)

    def get(self, key: TableKey, wanted: Data) -> Data:
        """Return what is enabled at a port."""
        if wanted.from_hw:
            raise Failure(BfStatus.NOT_SUPPORTED)
        (number,) = key
        self._check(number)
        return Data(0, {1: self.recirculates(number)}, set(self.schema.data) if wanted.everything else wanted.active)

    def clear(self) -> None:
        """Disable recirculation where that is possible."""
        self.ports.recirculating.clear()

    def recirculates(self, number: int) -> bool:
        """Return whether a port recirculates."""
        return self._always(number) or number in self.ports.recirculating

    def _check(self, number: int) -> None:
        if number // PIPE_PORTS >= self.ports.board.pipes or number % PIPE_PORTS > 71:
            raise Failure(BfStatus.INVALID_ARG)

    def _always(self, number: int) -> bool:
        return self.ports.board.family == "tf1" and number % PIPE_PORTS >= 68

    def _can(self, number: int) -> bool:
        local = number % PIPE_PORTS
        return local == 64 if self.ports.board.family == "tf1" else local < 8


class DeviceTable(Table):
    """The table `dev.device_configuration`, which has a default entry only (`BfRtDevTable`)."""

    has_default = True

    def __init__(self, schema: TableSchema, device: Tables, board: Board) -> None:
        super().__init__(schema, device)
        self.board = board

    def get_default(self, wanted: Data) -> Data:
        """Return what the device is."""
        board = self.board
        first = board.family == "tf1"
        front = sorted(set(board.names().values()) - set(board.cpu_ports))
        values = [
            ("BFN-T10-032D" if board.pipes == 2 else "BFN-T10-064Q") if first else "BFN-T20-128Q",
            board.pipes,
            12 if first else 20,
            len(board.names()),
            len(board.names()),
            board.pcie_port,
            board.cpu_ports,
            [],
            front,
            board.recirculation_ports,
        ]
        active = set(self.schema.data) if wanted.everything else wanted.active
        return Data(0, dict(enumerate(values, 1)), active)
