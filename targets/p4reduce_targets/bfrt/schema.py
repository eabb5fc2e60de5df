# SPDX-License-Identifier: Apache-2.0
"""Schemas of BF Runtime: the tables of a program (bf-rt.json, from the compiler), and those that every switch has.

Everything is a table: match-action tables, counters, meters, registers, multicast groups and ports. On the wire,
tables, actions and fields have numbers, which differ from those of P4Info.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_WIDTHS = {"uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "int64": 64, "int32": 32, "int16": 16, "int8": 8}
_WIDTHS |= {"bool": 1, "float": 0, "string": 0, "enum": 0}  # these travel in fields of their own, not as bytes


class SchemaError(ValueError):
    """A schema that is not one of BF Runtime; the message says where it is wrong."""


@dataclass(frozen=True, slots=True)
class KeyField:
    """A key field. `match_type`: Exact, Ternary, LPM, Range or Optional. `bits`: 0 for a string."""

    id: int
    name: str
    match_type: str
    bits: int


@dataclass(frozen=True, slots=True)
class DataField:
    """A field of an entry's data, or a parameter of an action. `bits`: 0 for a string, a float or an enum."""

    id: int
    name: str
    bits: int


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a table, with its parameters in order."""

    id: int
    name: str
    data: tuple[DataField, ...]


@dataclass(frozen=True)
class Table:
    """A table. `kind` is the schema's `table_type`, for example MatchAction_Direct, Counter or PreNode."""

    id: int
    name: str
    kind: str
    size: int
    keys: tuple[KeyField, ...]
    data: tuple[DataField, ...]  # of every entry, whatever its action
    actions: tuple[Action, ...]
    annotations: tuple[str, ...]  # as in the source: @name(argument)
    operations: tuple[str, ...]
    has_const_default: bool

    def key(self, name: str) -> KeyField:
        """Return a key field. This and the next methods raise KeyError for what the table does not have."""
        return _named(self.keys, name, f"{self.name} has no key field")

    def field(self, name: str) -> DataField:
        return _named(self.data, name, f"{self.name} has no data field")

    def action(self, name: str) -> Action:
        return _named(self.actions, name, f"{self.name} has no action")

    def has_field(self, name: str) -> bool:
        return any(field.name == name for field in self.data)


class Schema:
    """The tables of a switch, by name."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables: Mapping[str, Table] = {table.name: table for table in tables}
        # Servers also list tables of another chip, with the numbers of tables of theirs, such as tf5.tm.pool.cfg.
        self._by_id: dict[int, Table] = {}
        for table in self.tables.values():
            self._by_id.setdefault(table.id, table)

    @classmethod
    def parse(cls, *texts: bytes) -> Schema:
        """Return the tables of all these bf-rt.json files. Raises SchemaError."""
        tables: dict[str, Table] = {}
        for text in texts:
            for table in _tables(text):
                if table.name in tables:
                    raise SchemaError(f"the schema has two tables {table.name}")
                tables[table.name] = table
        return cls(tables.values())

    def table(self, name: str) -> Table:
        """Return a table by its name. Raises KeyError."""
        if name not in self.tables:
            raise KeyError(f"the schema of BF Runtime has no table {name}")
        return self.tables[name]

    def table_of(self, table_id: int) -> Table:
        """Return a table by its number, the first of several. Raises KeyError."""
        if table_id not in self._by_id:
            raise KeyError(f"the schema of BF Runtime has no table with the number {table_id:#x}")
        return self._by_id[table_id]


_Part = TypeVar("_Part", KeyField, DataField, Action)


def _named(items: Iterable[_Part], name: str, complaint: str) -> _Part:
    for item in items:
        if item.name == name:
            return item
    raise KeyError(f"{complaint} {name}")


def _tables(text: bytes) -> list[Table]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"a schema of BF Runtime (bf-rt.json) is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("tables"), list):
        raise SchemaError("a schema of BF Runtime (bf-rt.json) is a JSON object with a list `tables`, and this is not")
    return [_table(item, at) for at, item in enumerate(found["tables"])]


def _table(item: Any, at: int) -> Table:
    name = item.get("name", f"number {at}") if isinstance(item, dict) else f"number {at}"
    try:
        return Table(
            id=int(item["id"]),
            name=str(item["name"]),
            kind=str(item["table_type"]),
            size=int(item.get("size", 0)),
            keys=tuple(_key(part) for part in item.get("key", ())),
            data=_data(item.get("data", ())),
            actions=tuple(
                Action(int(part["id"]), str(part["name"]), _data(part.get("data", ())))
                for part in item.get("action_specs", ())
            ),
            annotations=_annotations(item),
            operations=tuple(str(part) for part in item.get("supported_operations", ())),
            has_const_default=bool(item.get("has_const_default_action", False)),
        )
    except SchemaError as error:
        raise SchemaError(f"the schema of BF Runtime, table {name}: {error}") from None
    except KeyError as error:
        raise SchemaError(f"the schema of BF Runtime, table {name}: there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise SchemaError(f"the schema of BF Runtime, table {name}: {error}") from None


def _key(item: Mapping[str, Any]) -> KeyField:
    return KeyField(int(item["id"]), str(item["name"]), str(item["match_type"]), _bits(item))


def _data(items: Iterable[Mapping[str, Any]]) -> tuple[DataField, ...]:
    """Return the fields, without alternatives (`oneof`) and fields that contain others: no table in use has them."""
    found = []
    for part in items:
        item = part.get("singleton", part)
        if "container" in item or "oneof" in item:
            continue
        found.append(DataField(int(item["id"]), str(item["name"]), _bits(item)))
    return tuple(found)


def _bits(item: Mapping[str, Any]) -> int:
    """Return the width of a field; 0 for a type that is unknown, as newer servers may have in tables not used here."""
    kind = str(item["type"]["type"])
    return int(item["type"]["width"]) if kind == "bytes" else _WIDTHS.get(kind, 0)


def _annotations(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each annotation as text. The public compiler writes @name(value) into `name`; others may split it."""
    found = []
    for part in item.get("annotations", ()):
        name, value = str(part["name"]), part.get("value")
        found.append(name if value is None else f"{name}({value})")
    return tuple(found)
