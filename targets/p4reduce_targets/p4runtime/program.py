# SPDX-License-Identifier: Apache-2.0
"""The objects of P4Info by id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from finsy.proto import p4i, p4r
from grpc import StatusCode

from p4reduce_targets.p4runtime.bytestrings import encode
from p4reduce_targets.p4runtime.errors import Refused, invalid, unsupported

_T = TypeVar("_T")

EXACT = p4i.MatchField.EXACT
LPM = p4i.MatchField.LPM
TERNARY = p4i.MatchField.TERNARY


@dataclass(frozen=True, slots=True)
class Field:
    """A match field of a table, a parameter of an action, or a field of a packet-in or packet-out header."""

    id: int
    name: str
    bits: int
    match_type: int = EXACT


@dataclass(frozen=True, slots=True)
class Action:
    id: int
    name: str
    params: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Table:
    id: int
    name: str
    fields: tuple[Field, ...]
    scopes: dict[int, int]  # action id -> p4i.ActionRef.Scope
    constant: bool
    default_is_constant: bool
    default: p4r.TableAction | None  # the program's default action
    direct_counter: Counter | None

    @property
    def has_priorities(self) -> bool:
        return any(item.match_type == TERNARY for item in self.fields)


@dataclass(frozen=True, slots=True)
class Counter:
    id: int
    name: str
    size: int
    unit: int


@dataclass(frozen=True, slots=True)
class Meter:
    id: int
    name: str
    size: int


@dataclass(frozen=True)
class Program:
    """The objects of a program by id, without those that the server does not support (registers, digests, ...)."""

    info: p4i.P4Info
    tables: dict[int, Table] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)
    counters: dict[int, Counter] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    packet_in: tuple[Field, ...] = ()
    packet_out: tuple[Field, ...] = ()

    def table(self, table_id: int) -> Table:
        """Return a table. This and the next methods raise Refused for an id that the program does not have."""
        return _known(self.tables, table_id, "table")

    def action(self, action_id: int) -> Action:
        return _known(self.actions, action_id, "action")

    def counter(self, counter_id: int) -> Counter:
        for table in self.tables.values():
            if table.direct_counter is not None and table.direct_counter.id == counter_id:
                raise invalid(f"counter {table.direct_counter.name} is direct: use DirectCounterEntry")
        return _known(self.counters, counter_id, "counter")

    def meter(self, meter_id: int) -> Meter:
        return _known(self.meters, meter_id, "meter")


def read_program(info: p4i.P4Info) -> Program:
    """Return the program that P4Info describes; raise Refused if it is inconsistent or not supported."""
    program = Program(
        info=info,
        actions={item.preamble.id: _action(item) for item in info.actions},
        counters={item.preamble.id: _counter(item.preamble, item.size, item.spec) for item in info.counters},
        meters={item.preamble.id: Meter(item.preamble.id, item.preamble.name, item.size) for item in info.meters},
        packet_in=_header(info, "packet_in"),
        packet_out=_header(info, "packet_out"),
    )
    direct = {item.direct_table_id: _counter(item.preamble, 0, item.spec) for item in info.direct_counters}
    for item in info.tables:
        program.tables[item.preamble.id] = _table(item, program, direct.get(item.preamble.id))
    preambles = [item.preamble for item in info.tables]
    preambles += [item.preamble for kind in (info.actions, info.counters, info.meters) for item in kind]
    ids = {preamble.id for preamble in preambles}
    if len(ids) != len(preambles) or 0 in ids:
        raise Refused(StatusCode.UNKNOWN, "Error when importing p4info: an id is 0 or is there twice")
    return program


def _action(item: p4i.Action) -> Action:
    params = tuple(Field(param.id, param.name, param.bitwidth) for param in item.params)
    return Action(item.preamble.id, item.preamble.name, params)


def _counter(preamble: p4i.Preamble, size: int, spec: p4i.CounterSpec) -> Counter:
    return Counter(preamble.id, preamble.name, size, spec.unit)


def _header(info: p4i.P4Info, name: str) -> tuple[Field, ...]:
    for item in info.controller_packet_metadata:
        if item.preamble.name == name:
            return tuple(Field(part.id, part.name, part.bitwidth) for part in item.metadata)
    return ()


def _table(item: p4i.Table, program: Program, direct_counter: Counter | None) -> Table:
    name = item.preamble.name
    if item.implementation_id:
        raise unsupported(f"table {name}: action profiles are not supported")
    for part in item.match_fields:
        if part.match_type not in (EXACT, LPM, TERNARY):
            kind = p4i.MatchField.MatchType.Name(part.match_type)
            raise unsupported(f"table {name}: match type {kind} of {part.name} is not supported: EXACT, LPM, TERNARY")
    for reference in item.action_refs:
        if reference.id not in program.actions:
            raise Refused(StatusCode.UNKNOWN, f"Error when importing p4info: table {name} has no action {reference.id}")
    return Table(
        id=item.preamble.id,
        name=name,
        fields=tuple(Field(part.id, part.name, part.bitwidth, part.match_type) for part in item.match_fields),
        scopes={reference.id: reference.scope for reference in item.action_refs},
        constant=item.is_const_table,
        default_is_constant=bool(item.const_default_action_id),
        default=_default(item),
        direct_counter=direct_counter,
    )


def _default(item: p4i.Table) -> p4r.TableAction | None:
    initial = item.initial_default_action
    action_id = initial.action_id or item.const_default_action_id
    if not action_id:
        return None
    result = p4r.TableAction()
    result.action.action_id = action_id
    for argument in initial.arguments:
        result.action.params.add(param_id=argument.param_id, value=encode(int.from_bytes(argument.value, "big")))
    return result


def _known(items: dict[int, _T], wanted: int, kind: str) -> _T:
    if wanted not in items:
        raise invalid(f"Invalid P4 id: the program has no {kind} {wanted}")
    return items[wanted]
