# SPDX-License-Identifier: Apache-2.0
"""The compiled program: the objects of BMv2's JSON (see its docs/JSON_format.md), with Python names."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from p4reduce_targets.dataplane import wrong_cpu_port
from p4reduce_targets.sim.errors import UnsupportedFeature

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a header instance, in the local variable `variable`."""

    header: str
    name: str
    bits: int
    variable: str


@dataclass(frozen=True, slots=True)
class Header:
    """A header instance, or a metadata struct. `valid` is the variable that holds its validity."""

    name: str
    fields: tuple[Field, ...]
    metadata: bool
    valid: str

    @property
    def bits(self) -> int:
        """The length in bits."""
        return sum(field.bits for field in self.fields)

    def field(self, name: str) -> Field:
        """Return the field of this name. Raises KeyError."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name}.{name}")


@dataclass(frozen=True, slots=True)
class Stack:
    """A header stack; `count` is the variable that holds how many headers were extracted or pushed."""

    name: str
    headers: tuple[Header, ...]
    count: str


@dataclass(frozen=True, slots=True)
class Register:
    """An array of `size` cells of `bits` bits, in the global list `variable`."""

    name: str
    size: int
    bits: int
    variable: str


@dataclass(frozen=True, slots=True)
class CounterArray:
    """An indirect counter, in the global lists `packets` and `bytes`."""

    name: str
    size: int
    packets: str
    bytes: str


@dataclass(frozen=True, slots=True)
class Meter:
    """An indirect meter, in the global `variable`."""

    name: str
    size: int
    bytes: bool
    variable: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """An action's parameter from the control plane, in the local variable `variable`."""

    name: str
    bits: int
    variable: str


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its parameters and, as in the JSON, its primitives."""

    id: int
    name: str
    parameters: tuple[Parameter, ...]
    primitives: tuple[Json, ...]


class Names:
    """A generator of unique Python names that resemble the names in P4."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, *parts: str) -> str:
        """Return a new name. It contains an underscore, so it is no keyword."""
        words = [word for part in parts for word in re.split(r"[^0-9A-Za-z]+", part) if word]
        base = "_".join(words)
        if base[0].isdigit() or "_" not in base:
            base = f"p4_{base}"
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


class Program:
    """The objects of a program by name, actions by id. Raises UnsupportedFeature for objects that sim cannot run."""

    def __init__(self, source: Json) -> None:
        refuse_unsupported_parts(source)
        self.source = source
        self.names = Names()
        self.errors: dict[str, int] = dict(source.get("errors", ()))
        types = {item["name"]: item for item in source["header_types"]}
        self.headers = {
            item["name"]: self._header(item, types[item["header_type"]]["fields"]) for item in source["headers"]
        }
        by_id = {item["id"]: self.headers[item["name"]] for item in source["headers"]}
        self.stacks = {
            item["name"]: Stack(
                item["name"],
                tuple(by_id[number] for number in item["header_ids"]),
                self.names.new(item["name"], "count"),
            )
            for item in source.get("header_stacks", ())
        }
        self.registers = {
            item["name"]: Register(item["name"], item["size"], item["bitwidth"], self.names.new(item["name"]))
            for item in source.get("register_arrays", ())
        }
        self.counters = {
            item["name"]: CounterArray(
                item["name"],
                item["size"],
                self.names.new(item["name"], "packets"),
                self.names.new(item["name"], "bytes"),
            )
            for item in source.get("counter_arrays", ())
            if not item["is_direct"]
        }
        self.meters = {
            item["name"]: Meter(item["name"], item["size"], item["type"] == "bytes", self.names.new(item["name"]))
            for item in source.get("meter_arrays", ())
        }
        self.actions = {item["id"]: self._action(item) for item in source["actions"]}
        # Fields of the architecture, which a program may have renamed.
        self._aliases = {alias: (header, field) for alias, (header, field) in source.get("field_aliases", ())}

    def field(self, header: str, name: str) -> Field:
        """Return a field. Raises KeyError."""
        return self.headers[header].field(name)

    def intrinsic(self, name: str, *older: str) -> Field | None:
        """Return a field of the architecture by its name in `standard_metadata` or an older alias, or None."""
        for alias in (f"standard_metadata.{name}", *older):
            if alias in self._aliases:
                return self.field(*self._aliases[alias])
        standard = self.headers.get("standard_metadata")
        if standard is None:
            return None
        return next((field for field in standard.fields if field.name == name), None)

    def _header(self, item: Json, fields: Json) -> Header:
        name = item["name"]
        return Header(
            name,
            tuple(Field(name, field[0], field[1], self.names.new(name, field[0])) for field in fields),
            item["metadata"],
            self.names.new(name, "valid"),
        )

    def _action(self, item: Json) -> Action:
        parameters = tuple(
            Parameter(data["name"], data["bitwidth"], self.names.new(item["name"], data["name"]))
            for data in item["runtime_data"]
        )
        return Action(item["id"], item["name"], parameters, tuple(item["primitives"]))


def parse(text: str | bytes) -> Program:
    """Read the output of p4c-bm2-ss. Raises ValueError for other text, UnsupportedFeature if sim cannot run it."""
    try:
        source = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the program is not JSON: {error}") from error
    if not isinstance(source, dict) or not {"header_types", "headers", "parsers", "pipelines", "actions"} <= set(
        source
    ):
        raise ValueError("the program is not BMv2 JSON: it lacks header_types, headers, parsers, pipelines or actions")
    return Program(source)


def check_cpu_port(source: Json, cpu_port: int) -> None:
    """Raise ValueError for a program that parses packet-outs only if they arrive at another port.

    Programs that do not select on the ingress port before they extract `packet_out` are accepted.
    """
    for parser in source["parsers"]:
        states = {state["name"]: state for state in parser["parse_states"]}
        extracting = {name for name, state in states.items() if _extracts(state, "packet_out")}
        for state in states.values():
            if [part.get("value") for part in state["transition_key"]] != [["standard_metadata", "ingress_port"]]:
                continue
            # The parser takes the first transition that matches.
            cases = [(_case(transition), transition["next_state"] in extracting) for transition in state["transitions"]]
            to_packet_out = [value for (value, _), extracts in cases if extracts]
            taken = next((extracts for (value, mask), extracts in cases if cpu_port & mask == value & mask), False)
            if to_packet_out and not taken:
                raise wrong_cpu_port(to_packet_out[0], cpu_port)


def _extracts(state: Json, header: str) -> bool:
    return any(
        operation["op"] == "extract" and parameter.get("value") == header
        for operation in state["parser_ops"]
        for parameter in operation.get("parameters", ())
    )


def _case(transition: Json) -> tuple[int, int]:
    """Return value and mask of a transition."""
    if transition["value"] in (None, "default"):
        return 0, 0
    mask = transition["mask"]
    return int(transition["value"], 16), int(mask, 16) if mask else -1


def refuse_unsupported_parts(source: Json) -> None:
    """Raise UnsupportedFeature for sections of the JSON that sim does not support."""
    for section, what in (
        ("header_unions", "header union"),
        ("header_union_stacks", "stack of header unions"),
        ("parse_vsets", "parser value set"),
        ("extern_instances", "extern"),
    ):
        for item in source.get(section, ()):
            kind = f" of type {item['type']}" if section == "extern_instances" else ""
            raise UnsupportedFeature(what + kind, f"{section}, {item['name']}")
    for item in source.get("meter_arrays", ()):
        if item["is_direct"]:
            raise UnsupportedFeature("direct meter", f"meter_arrays, {item['name']}")
    for pipeline in source["pipelines"]:
        for item in pipeline.get("action_profiles", ()):
            raise UnsupportedFeature("action profile", f"pipeline {pipeline['name']}, {item['name']}")
    for header_type in source["header_types"]:
        for field in header_type["fields"]:
            where = f"header type {header_type['name']}, field {field[0]}"
            if field[1] == "*":
                raise UnsupportedFeature("a field of variable length", where)
            if len(field) > 2 and field[2]:
                raise UnsupportedFeature("a signed field", where)
            if len(field) > 3 and field[3]:
                raise UnsupportedFeature("a saturating field", where)
