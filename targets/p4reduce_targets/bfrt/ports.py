# SPDX-License-Identifier: Apache-2.0
"""A Tofino's ports: names and speeds of the front panel, whether a link is up, and recirculation.

The switch knows a port by its device port, a number whose upper bits are the pipe and whose low 7 bits are the port in
the pipe. P4 programs and P4Runtime use this number. The front panel has names such as 1/0: connector and channel.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import device_config
from p4reduce_targets.bfrt.client import BfrtError, BfrtLost, Client, ReadRefused
from p4reduce_targets.bfrt.schema import DataField, Schema, Table
from p4reduce_targets.bfrt.updates import entry_update, number_key
from p4reduce_targets.ports import PortError

log = logging.getLogger(__name__)

SPEEDS = ("10G", "25G", "40G", "50G", "100G", "200G", "400G")
FECS = {"none": "BF_FEC_TYP_NONE", "fc": "BF_FEC_TYP_FIRECODE", "rs": "BF_FEC_TYP_REED_SOLOMON"}
AUTONEGOTIATION = {"": "PM_AN_DEFAULT", "an": "PM_AN_FORCE_ENABLE", "no-an": "PM_AN_FORCE_DISABLE"}
ACCEPTED = (
    "accepted are NAME:SPEED[:FEC[:AUTONEGOTIATION]], such as 1/0:100G:rs. NAME is that on the front panel, or the "
    f"number of a device port; SPEED one of {', '.join(SPEEDS)}; FEC {', '.join(FECS)} (default none); AUTONEGOTIATION "
    "an or no-an (default: the board's)"
)

_PIPE_BITS = 7  # of a device port's number, for the port within its pipe
_LARGEST_PORT = (1 << 9) - 1  # egress ports of P4 programs have 9 bits
_POLL_S = 1.0  # between reads of the links' states, by which a server that hangs is found as well
_LOG_AFTER_S = 10.0  # that a link must keep a state before it is logged
_SYNONYMS = {"BF_FEC_TYP_FC": "BF_FEC_TYP_FIRECODE", "BF_FEC_TYP_RS": "BF_FEC_TYP_REED_SOLOMON"}
_SPEED, _FEC, _AUTONEGOTIATION, _ENABLE = "$SPEED", "$FEC", "$AUTO_NEGOTIATION", "$PORT_ENABLE"


@dataclass(frozen=True, slots=True)
class PortRequest:
    """A port as given by --port. `fec` and `autonegotiation` are keys of FECS and AUTONEGOTIATION."""

    name: str
    speed: str
    fec: str = "none"
    autonegotiation: str = ""

    @classmethod
    def parse(cls, text: str) -> PortRequest:
        """Return the port that a text like "1/0:100G:rs" describes. Raises PortError."""
        name, *rest = text.split(":")
        speed, fec, autonegotiation = [*rest[:3], *["100G", "none", ""][len(rest) :]]
        if not name or not 1 <= len(rest) <= 3 or "" in rest:
            raise PortError(f"--port {text!r}: {ACCEPTED}")
        request = cls(name, speed.upper(), fec.lower(), autonegotiation.lower())
        if request.speed not in SPEEDS or request.fec not in FECS or request.autonegotiation not in AUTONEGOTIATION:
            raise PortError(f"--port {text!r}: {ACCEPTED}")
        return request

    def settings(self) -> dict[str, str | bool]:
        """Return the fields of `$PORT` with their values."""
        return {
            _SPEED: f"BF_SPEED_{self.speed}",
            _FEC: FECS[self.fec],
            _AUTONEGOTIATION: AUTONEGOTIATION[self.autonegotiation],
            _ENABLE: True,
        }

    def __str__(self) -> str:
        parts = [self.name, self.speed, self.fec, self.autonegotiation]
        return ":".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class PortState:
    """A port that was added: its name on the front panel, and its settings as `PortRequest.settings` gives them."""

    name: str
    settings: Mapping[str, str | bool | int]
    up: bool

    @property
    def enabled(self) -> bool:
        return bool(self.settings[_ENABLE])

    def __str__(self) -> str:
        """Return the settings as in --port, such as "100G:rs"."""
        fecs = {value: name for name, value in FECS.items()}
        return f"{str(self.settings[_SPEED]).removeprefix('BF_SPEED_')}:{fecs.get(str(self.settings[_FEC]), '?')}"

    def is_as(self, request: PortRequest) -> bool:
        """Return whether the port has the settings of a request."""
        return self.settings == request.settings()


class LinkStates:
    """The states of ports' links, read from the switch every second by a thread, until the connection ends.

    It logs a state that lasts: a link takes some seconds to come up.
    """

    def __init__(self, client: Client, schema: Schema, names: Mapping[int, str]) -> None:
        """Read the states, and start the thread. `names`: as in --port, by device port. Raises BfrtError."""
        self._client = client
        self._table = schema.table("$PORT")
        self._names = names
        self._numbers = tuple(names)
        self._states: Mapping[int, str] = {}
        self._since = {number: time.monotonic() for number in names}
        self._logged = dict.fromkeys(names, "UP")
        self._read()
        threading.Thread(target=self._poll, name="bfrt-links", daemon=True).start()

    def state(self, number: int) -> str:
        """Return OpenConfig's oper-status of a port as last read: UP, DOWN or NOT_PRESENT.

        A read waits for other calls of BF Runtime, such as the removal of all entries, which may take a minute.
        """
        return self._states[number]

    def _poll(self) -> None:
        while self._client.lost is None:  # without ports, `_read` makes no call that raises BfrtLost
            time.sleep(_POLL_S)
            try:
                self._read()
            except BfrtLost:
                return
            except BfrtError as error:
                log.warning("cannot read the states of links: %s", error)

    def _read(self) -> None:
        try:
            entries = self._client.read([self._entry(number) for number in self._numbers])
            states = [self._state(entry) for entry in entries]
        except ReadRefused:  # somebody has removed a port
            states = [self._state_of(number) for number in self._numbers]
        self._update(dict(zip(self._numbers, states, strict=True)))

    def _update(self, states: Mapping[int, str]) -> None:
        now = time.monotonic()
        for number, state in states.items():
            if state != self._states.get(number):
                self._since[number] = now
            if state != self._logged[number] and now - self._since[number] >= _LOG_AFTER_S:
                text = "somebody has removed it from the switch" if state == "NOT_PRESENT" else f"its link is {state}"
                log.warning("port %s: %s", self._names[number], text)
                self._logged[number] = state
        self._states = states

    def _state_of(self, number: int) -> str:
        try:
            (entry,) = self._client.read([self._entry(number)])
        except ReadRefused:
            return "NOT_PRESENT"
        return self._state(entry)

    def _entry(self, number: int) -> pb.TableEntry:
        return _asking(self._table, number_key(self._table, number), ["$PORT_UP"])

    def _state(self, entry: pb.TableEntry) -> str:
        return "UP" if _values(self._table, entry)["$PORT_UP"] else "DOWN"


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one port."""

    states: LinkStates
    number: int

    def state(self) -> str:
        """Return OpenConfig's oper-status: UP, DOWN or NOT_PRESENT."""
        return self.states.state(self.number)


@dataclass(frozen=True, slots=True)
class TofinoPort:
    """A port of the switch: its device port, its name as in --port, and its link."""

    number: int
    name: str
    interface: Link


def open_ports(
    client: Client, schema: Schema, program: pb.ForwardingPipelineConfig, requests: Sequence[PortRequest]
) -> list[TofinoPort]:
    """Add and enable ports, let the program's recirculation ports recirculate, and follow the states of links.

    A port that has its settings already is left as it is, so its link stays up. Ports that are not requested are left
    alone. The CPU port can be requested, where it is Ethernet, and is not returned. Raises PortError for a port that
    the switch lacks or refuses, or if the program is for another board's CPU port; and BfrtError.
    """
    cpu_port = device_config.cpu_port(program)
    ethernet = check_cpu_port(client, schema, cpu_port)
    wanted = device_ports(client, schema, requests)
    recirculation = recirculation_ports(client, schema, program)
    _check_numbers(wanted, recirculation)
    _recirculate(client, schema, recirculation)
    _add(client, schema, wanted)
    if wanted.pop(cpu_port, None) is None and ethernet and not is_enabled(client, schema, cpu_port):
        log.warning(
            "%s: CPU port %d of the program is an Ethernet port that is not enabled: %s",
            client,
            cpu_port,
            enabling_advice(cpu_port),
        )
    states = LinkStates(client, schema, {number: request.name for number, request in wanted.items()})
    return [TofinoPort(number, request.name, Link(states, number)) for number, request in wanted.items()]


def device_ports(client: Client, schema: Schema, requests: Sequence[PortRequest]) -> dict[int, PortRequest]:
    """Return the requests by device port. Raises PortError for unknown names, and for a port that is given twice."""
    table = schema.table("$PORT_STR_INFO")
    named = [request for request in requests if not request.name.isdecimal()]
    key = table.key("$PORT_NAME")
    wanted = [
        pb.TableEntry(
            table_id=table.id,
            key=pb.TableKey(
                fields=[pb.KeyField(field_id=key.id, exact=pb.KeyField.Exact(value=request.name.encode()))]
            ),
        )
        for request in named
    ]
    try:
        entries = client.read(wanted)
    except ReadRefused as refused:
        at, error = next((at, error) for at, error in enumerate(refused.errors) if error is not None)
        raise PortError(
            f"--port {named[at]}: the front panel has no port {named[at].name} ({error}); the names are those that "
            "`pm` in bf_switchd's shell shows"
        ) from None
    found = {request: int(_values(table, entry)["$DEV_PORT"]) for request, entry in zip(named, entries, strict=True)}
    numbers: dict[int, PortRequest] = {}
    for request in requests:
        number = int(request.name) if request.name.isdecimal() else found[request]
        if number in numbers:
            raise PortError(f"--port {request}: that is device port {number}, as is --port {numbers[number]}")
        numbers[number] = request
    return numbers


def _check_numbers(wanted: Mapping[int, PortRequest], recirculation: Sequence[int]) -> None:
    for number, request in wanted.items():
        if number in recirculation:
            raise PortError(f"--port {request}: device port {number} is one of the program's recirculation ports")
        if number == 0:
            raise PortError(f"--port {request}: device port 0 has no number in P4Runtime; use another connector")
        if number > _LARGEST_PORT:
            raise PortError(f"--port {request}: the device ports that P4 programs can name are 1 to {_LARGEST_PORT}")


def _add(client: Client, schema: Schema, wanted: Mapping[int, PortRequest]) -> None:
    table = schema.table("$PORT")
    names = [_SPEED, _FEC, _AUTONEGOTIATION, _ENABLE]
    present = {_port_number(entry): entry for entry in client.read([_asking(table, None, names)])}
    updates: list[pb.Update] = []
    changed: list[int] = []
    for number, request in wanted.items():
        if number in present and _settings(table, present[number]) == request.settings():
            continue
        key = number_key(table, number)
        if number in present:  # an INSERT would leave speed and FEC as they are, and a MODIFY would not change lanes
            updates.append(entry_update(pb.Update.DELETE, pb.TableEntry(table_id=table.id, key=key)))
        data = pb.TableData(fields=[_field(table.field(name), value) for name, value in request.settings().items()])
        updates.append(entry_update(pb.Update.INSERT, pb.TableEntry(table_id=table.id, key=key, data=data)))
        changed.append(number)
    for update, error in zip(updates, client.write(updates), strict=True):
        if error is not None:
            request = wanted[_port_number(update.entity.table_entry)]
            raise PortError(
                f"--port {request}: the switch refuses it ({error}): check the speed, the FEC, and that no other port "
                "uses its connector's lanes"
            )
    # The server only logs what fails after a port is there, and reports success.
    added = client.read([_asking(table, number_key(table, number), names) for number in changed])
    for number, entry in zip(changed, added, strict=True):
        settings, request = _settings(table, entry), wanted[number]
        for name, value in request.settings().items():
            if settings.get(name) != value:
                raise PortError(
                    f"--port {request}: the switch did not take {name} {value}, and has {settings.get(name)}"
                )


def check_cpu_port(client: Client, schema: Schema, cpu_port: int) -> bool:
    """Return whether the program's CPU port is one of Ethernet.

    Raises PortError if the board's CPU ports are known, and the program's is none of them.
    """
    pcie = _device(client, schema, "pcie_cpu_port")
    ethernet = _device(client, schema, "eth_cpu_port_list")
    if not pcie and not ethernet:
        log.warning("%s: it does not tell which CPU ports the board has; the program is for %d", client, cpu_port)
    elif cpu_port not in (*pcie, *ethernet):
        has = [
            f"{', '.join(map(str, ports))} ({what})"
            for ports, what in ((pcie, "PCIe"), (ethernet, "Ethernet"))
            if ports
        ]
        raise PortError(
            f"the program is for CPU port {cpu_port}, and the board of the {client} has {' and '.join(has)}: compile "
            'the program for one of them, `make p4-tofino ARGS="--cpu-port N --out FOLDER PROFILE"`'
        )
    return cpu_port in ethernet


def enabling_advice(cpu_port: int) -> str:
    """Return what to do about an Ethernet CPU port that is not enabled."""
    return f"add --port {cpu_port}:10G, or the speed that its other end has (the model does without)"


def is_enabled(client: Client, schema: Schema, number: int) -> bool:
    """Return whether somebody has added and enabled a port."""
    port = read_ports(client, schema).get(number)
    return port is not None and port.enabled


def recirculation_ports(client: Client, schema: Schema, program: pb.ForwardingPipelineConfig) -> list[int]:
    """Return the port of each pipe that second passes use; none if the program has no second pass."""
    port = device_config.recirculation_port(program)
    if port is None:
        return []
    pipes = _device(client, schema, "num_pipes")
    if not pipes:
        raise BfrtError(f"{client}: it does not tell how many pipes the chip has, and the program recirculates")
    return [pipe << _PIPE_BITS | port for pipe in range(pipes[0])]


def read_ports(client: Client, schema: Schema) -> dict[int, PortState]:
    """Return the ports that were added, by device port. Raises BfrtError."""
    table = schema.table("$PORT")
    settings = [_SPEED, _FEC, _AUTONEGOTIATION, _ENABLE]
    found = {}
    for entry in client.read([_asking(table, None, [*settings, "$PORT_UP", "$PORT_NAME"])]):
        values = _settings(table, entry)
        state = PortState(
            str(values["$PORT_NAME"]), {name: values.get(name, "") for name in settings}, bool(values["$PORT_UP"])
        )
        found[_port_number(entry)] = state
    return found


def read_recirculation(client: Client, schema: Schema, ports: Sequence[int]) -> dict[int, bool]:
    """Return for each of these ports whether it sends its packets back into its pipe. Raises BfrtError."""
    table = _of_kind(schema, "PktgenPortCfg")
    name = "recirculation_enable"
    entries = client.read([_asking(table, number_key(table, port), [name]) for port in ports])
    return {port: bool(_values(table, entry).get(name)) for port, entry in zip(ports, entries, strict=True)}


def _recirculate(client: Client, schema: Schema, ports: Sequence[int]) -> None:
    """Let each of these ports send its packets back into its pipe."""
    if not ports:
        return
    table = _of_kind(schema, "PktgenPortCfg")
    field = pb.DataField(field_id=table.field("recirculation_enable").id, bool_val=True)
    updates = [
        entry_update(
            pb.Update.MODIFY,
            pb.TableEntry(table_id=table.id, key=number_key(table, port), data=pb.TableData(fields=[field])),
        )
        for port in ports
    ]
    for port, error in zip(ports, client.write(updates), strict=True):
        if error is not None:
            raise PortError(
                f"device port {port} cannot recirculate, and the program's second pass uses it: {error}. Compile the "
                'program for another, `make p4-tofino ARGS="--recirculation-port N ..."`'
            )


def _device(client: Client, schema: Schema, name: str) -> list[int]:
    """Return a property of the chip: its value, or all values of a list; [] if the server does not know it."""
    table = _of_kind(schema, "DevConfigure")
    if not table.has_field(name):
        return []
    entry = _asking(table, None, [name])
    entry.is_default_entry = True
    try:
        found = client.read([entry])
    except ReadRefused:
        return []
    field = table.field(name).id
    return [
        number
        for one in found
        for part in one.data.fields
        if part.field_id == field
        for number in (part.int_arr_val.val if part.HasField("int_arr_val") else [int.from_bytes(part.stream, "big")])
    ]


def _of_kind(schema: Schema, kind: str) -> Table:
    """Return the table of a kind, whose name differs between chips. Raises BfrtError."""
    for table in schema.tables.values():
        if table.kind == kind:
            return table
    raise BfrtError(f"the schema of the BF Runtime server has no table of the type {kind}")


def _port_number(entry: pb.TableEntry) -> int:
    return int.from_bytes(entry.key.fields[0].exact.value, "big")


def _asking(table: Table, key: pb.TableKey | None, names: Sequence[str]) -> pb.TableEntry:
    """Return an entry that asks for these fields; without a key, those of all entries."""
    fields = [pb.DataField(field_id=table.field(name).id) for name in names]
    return pb.TableEntry(table_id=table.id, key=key, data=pb.TableData(fields=fields))


def _field(field: DataField, value: str | bool) -> pb.DataField:
    if isinstance(value, bool):
        return pb.DataField(field_id=field.id, bool_val=value)
    return pb.DataField(field_id=field.id, str_val=value)


def _values(table: Table, entry: pb.TableEntry) -> dict[str, str | bool | int]:
    """Return the fields of an entry that are a text, a truth value or a number, by name."""
    names = {field.id: field.name for field in table.data}
    found: dict[str, str | bool | int] = {}
    for part in entry.data.fields:
        kind = part.WhichOneof("value")
        if part.field_id in names and kind in ("str_val", "bool_val", "stream"):
            value = getattr(part, kind)
            found[names[part.field_id]] = int.from_bytes(value, "big") if kind == "stream" else value
    return found


def _settings(table: Table, entry: pb.TableEntry) -> dict[str, str | bool | int]:
    """Return the settings of a port as `PortRequest.settings` gives them."""
    found = _values(table, entry)
    return {**found, _FEC: _SYNONYMS.get(str(found.get(_FEC)), found.get(_FEC, ""))}
