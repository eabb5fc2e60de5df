# SPDX-License-Identifier: Apache-2.0
"""The program that the C code implements, and the check that a compiled program (BMv2's JSON) is the same."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from p4reduce.protocol.constants import AGGREGATION_PORT, BLOCK_SIZES_ACCEPTED, LANES_ACCEPTED
from p4reduce_targets.native.library import library

_DESCRIPTION_SIZE = 64 << 10


@dataclass(frozen=True, slots=True)
class Layout:
    """The build options of a compiled program."""

    lanes: int
    block_size: int
    halves: int
    cpu_port: int
    max_growth: int


@dataclass(frozen=True, slots=True)
class Action:
    """An action. Parameters are (name, bits)."""

    number: int
    parameters: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a key. In the C code's key, it begins at bit `shift` of the word with the index `word`.

    A field of 128 bits is that word, for its upper half, and the next.
    """

    name: str
    bits: int
    word: int
    shift: int


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `miss` is its default action. In an LPM table, the key's second word is the prefix length."""

    number: int
    fields: tuple[Field, ...]
    actions: Mapping[str, Action]
    miss: str
    size: int
    match: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Array:
    """An indirect counter or meter."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Implemented:
    """The program that the C code implements: its objects by their names in P4Info."""

    tables: Mapping[str, Table]
    counters: Mapping[str, Array]
    meters: Mapping[str, Array]  # all of packets


@cache
def implemented() -> Implemented:
    """Return the description in program.c of targets/csrc. Raises LibraryMissing."""
    text = ctypes.create_string_buffer(_DESCRIPTION_SIZE)
    length = library().native_program(text, len(text))
    assert length >= 0, "the description is longer than _DESCRIPTION_SIZE"
    described = json.loads(text.raw[:length])
    actions = described["actions"]
    return Implemented(
        {table["name"]: _table(number, table, actions) for number, table in enumerate(described["tables"])},
        {counter["name"]: Array(number, counter["size"]) for number, counter in enumerate(described["counters"])},
        {meter["name"]: Array(number, meter["size"]) for number, meter in enumerate(described["meters"])},
    )


def _table(number: int, table: dict[str, Any], actions: list[dict[str, Any]]) -> Table:
    control = table["name"].rpartition(".")[0]

    def full_name(action: int) -> str:
        name: str = actions[action]["name"]
        return name if name == "NoAction" else f"{control}.{name}"

    def parameters(action: int) -> tuple[tuple[str, int], ...]:
        return tuple((name, int(bits)) for name, bits in _split(actions[action]["parameters"]))

    return Table(
        number,
        tuple(Field(name, int(bits), int(word), int(shift)) for name, bits, word, shift in _split(table["key"])),
        {full_name(action): Action(action, parameters(action)) for action in table["actions"]},
        full_name(table["miss"]),
        table["size"],
        table["match"],
        table["counts"],
    )


def _split(text: str) -> list[list[str]]:
    return [item.split(":") for item in text.split()]


_HEADERS = {
    "packet_out": "through_pipeline 1, padding 6, egress_port 9, multicast_group 16",
    "packet_in": "padding 7, ingress_port 9, bitmap 32",
    "aggregation": "version 4, op 4, active 8, present 8, worker 8, job 16, generation 16, slot 16, seq 32, "
    "fingerprint 32",
}


@dataclass
class _Differences:
    """The differences between a compiled program and the one that the C code implements."""

    found: list[str] = field(default_factory=list)

    def compare(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            self.found.append(f"{what} is {found}, not {expected}")


def check(program: bytes) -> Layout:
    """Return the build options of the aggregator's program; for another, raise ValueError with the differences."""
    try:
        return _check(json.loads(program))
    except (KeyError, TypeError, IndexError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a program of BMv2, as p4c-bm2-ss makes them: {type(error).__name__}: {error}") from None


def _check(program: dict[str, Any]) -> Layout:
    differences = _Differences()
    types = {kind["name"]: {f[0]: f[1] for f in kind["fields"]} for kind in program["header_types"]}
    headers = {header["name"]: types[header["header_type"]] for header in program["headers"]}
    for name, fields in _HEADERS.items():
        there = ", ".join(f"{key} {bits}" for key, bits in headers.get(name, {}).items())
        differences.compare(f"header {name}", fields, there)
    _check_tables(program, headers, differences)
    found = {array["name"]: array["size"] for array in program["counter_arrays"] if not array.get("is_direct")}
    differences.compare("the set of counters", {name: one.size for name, one in implemented().counters.items()}, found)
    direct = {array["binding"] for array in program["counter_arrays"] if array.get("is_direct")}
    counting = {name for name, table in implemented().tables.items() if table.counts}
    differences.compare("the set of other tables with counters", [], sorted(direct - counting))
    meters = {array["name"]: (array["size"], array["type"]) for array in program["meter_arrays"]}
    expected_meters = {name: (one.size, "packets") for name, one in implemented().meters.items()}
    differences.compare("the set of meters", expected_meters, meters)
    cpu_port = _parser_constant(program, "start", "parse_packet_out", differences)
    port = _parser_constant(program, "parse_udp", "parse_aggregation", differences)
    differences.compare("the UDP port of the aggregator", AGGREGATION_PORT, port)
    lanes, block_size, halves = _registers(program, differences)
    max_growth = _max_growth(program, differences)
    if differences.found:
        raise ValueError(
            "target native runs only the aggregator's own program, p4reduce, and this is another program: "
            + "; ".join(differences.found)
        )
    return Layout(lanes, block_size, halves, cpu_port, max_growth)


def _check_tables(program: dict[str, Any], headers: dict[str, dict[str, int]], differences: _Differences) -> None:
    actions = {
        action["id"]: (action["name"], [(item["name"], item["bitwidth"]) for item in action["runtime_data"]])
        for action in program["actions"]
    }
    found = {}
    for pipeline in program["pipelines"]:
        for table in pipeline["tables"]:
            if not table["name"].startswith("tbl_"):  # made by p4c: one action each
                found[table["name"]] = table
    tables = implemented().tables
    differences.compare("the set of tables", sorted(tables), sorted(found))
    for name in tables.keys() & found.keys():
        expected, table = tables[name], found[name]
        keys = [(key["match_type"], key["name"], _width(key["target"], headers)) for key in table["key"]]
        differences.compare(f"key of {name}", [(expected.match, one.name, one.bits) for one in expected.fields], keys)
        has = dict(actions[number] for number in table["action_ids"])
        wanted = {action: list(one.parameters) for action, one in expected.actions.items()}
        differences.compare(f"the set of actions of {name}", wanted, has)
        differences.compare(f"default action of {name}", expected.miss, actions[table["default_entry"]["action_id"]][0])
        differences.compare(f"size of {name}", expected.size, table["max_size"])


def _width(target: list[str], headers: dict[str, dict[str, int]]) -> int:
    return headers[target[0]][target[1]]


def _parser_constant(program: dict[str, Any], state: str, next_state: str, differences: _Differences) -> int:
    """Return the value that selects the transition from one parser state to the other."""
    for item in program["parsers"][0]["parse_states"]:
        for transition in item["transitions"]:
            if item["name"] == state and transition["next_state"] == next_state and transition["value"]:
                return int(transition["value"], 16)
    differences.found.append(f"the parser does not go from {state} to {next_state}")
    return 0


def _registers(program: dict[str, Any], differences: _Differences) -> tuple[int, int, int]:
    """Return lanes, block size and halves, from the names and sizes of the registers."""
    sizes = {array["name"]: array["size"] for array in program["register_arrays"]}
    where = "SwitchIngress.aggregation"
    sums = [re.fullmatch(rf"{where}\.lane(\d+)\.value(\d+)\.sums", name) for name in sizes]
    lanes = max((int(match[1]) + 1 for match in sums if match), default=0)
    block_size = max((int(match[2]) + 1 for match in sums if match), default=0)
    halves = sizes.get(f"{where}.slot_state.seqs", 0)
    expected = {f"{where}.slot_state.{name}" for name in ("seqs", "bitmaps", "fingerprints", "partials")}
    expected |= {f"{where}.key{lane}.keys" for lane in range(lanes)}
    expected |= {f"{where}.lane{lane}.value{value}.sums" for lane in range(lanes) for value in range(block_size)}
    if lanes not in LANES_ACCEPTED or block_size not in BLOCK_SIZES_ACCEPTED:
        differences.found.append(
            f"{lanes} lanes of {block_size} values; accepted are {LANES_ACCEPTED} of {BLOCK_SIZES_ACCEPTED}"
        )
    elif sizes.keys() != expected or set(sizes.values()) != {halves} or not 2 <= halves <= 1 << 16:
        differences.found.append("registers are not those of the slots")
    return lanes, block_size, halves


def _max_growth(program: dict[str, Any], differences: _Differences) -> int:
    """Return MAX_GROWTH, from the condition that rejects malformed packets."""
    for pipeline in program["pipelines"]:
        for conditional in pipeline["conditionals"]:
            for operation in _operations(conditional["expression"]):
                left, right = operation.get("left"), operation.get("right")
                if operation["op"] == ">" and left and right and str(left["value"][-1]).endswith("growth"):
                    return int(right["value"], 16)
    differences.found.append("nothing limits an answer's growth by MAX_GROWTH")
    return 0


def _operations(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "op" in node:
            yield node
        for item in node.values():
            yield from _operations(item)
