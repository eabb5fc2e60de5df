# SPDX-License-Identifier: Apache-2.0
"""Vectorization: one operation on a long integer replaces the same operation on every field of a header.

p4c unrolls "for each value: sum = register_i[slot]; value_i += sum; register_i[slot] = value_i". A header becomes
a row if all its fields have the same width, and the program uses them only in such loops. A row is one integer with a
field every `bits` bits, the first the most significant (SIMD within a register). The registers and temporaries in these
loops become rows, too. `rowcode` has the arithmetic.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from p4reduce_targets.sim.program import Header, Json, Program

MIN_FIELDS = 8  # shorter headers are as fast field by field
MAX_PERIOD = 4  # primitives in one iteration of an unrolled loop

Part: TypeAlias = tuple[str, ...]  # a field (header, name) or a register (name,) of the program
Pack: TypeAlias = tuple[Part, ...]
"""The parts that successive iterations of a loop use (a pack of Larsen and Amarasinghe, PLDI 2000)."""

ROW_PRIMITIVES = frozenset({"assign", "register_read", "register_write"})
ROW_OPERATORS = frozenset({"&", "|", "^", "~", "+", "-"})  # low result bits depend only on low operand bits


@dataclass(frozen=True, slots=True)
class Loop:
    """An unrolled loop in an action: primitives[start : start + period * iterations]."""

    start: int
    period: int
    iterations: int
    packs: tuple[Pack, ...]

    @property
    def stop(self) -> int:
        """The primitive after the loop."""
        return self.start + self.period * self.iterations


@dataclass(frozen=True, slots=True)
class Row:
    """A pack as one variable: a header, a temporary, or a list with a row for each register index."""

    variable: str
    fields: int
    bits: int

    @property
    def ones(self) -> int:
        """A row of ones. Its product with a number is a row of that number."""
        return sum(1 << (self.bits * index) for index in range(self.fields))


class Rows:
    """The rows of a program: `headers` by header name, `parts` by field or register, `loops` by action id."""

    def __init__(self, program: Program) -> None:
        self.program = program
        loops = {action.id: list(find_loops(action.primitives)) for action in program.actions.values()}
        self.loops = self._without_strangers(loops)
        packs = {pack for found in self.loops.values() for loop in found for pack in loop.packs}
        self.parts: dict[Part, Row] = {}
        self.headers: dict[str, Row] = {}
        self.banks: dict[str, tuple[Row, int]] = {}  # list variable -> its rows, how many
        for pack in sorted(packs):
            row = self._row(pack)
            self.parts.update(dict.fromkeys(pack, row))

    def _row(self, pack: Pack) -> Row:
        first = pack[0]
        if len(first) == 1:
            register = self.program.registers[first[0]]
            row = Row(self.program.names.new(register.name, "rows"), len(pack), register.bits)
            self.banks[row.variable] = (row, register.size)
            return row
        header = self.program.headers[first[0]]
        row = Row(self.program.names.new(*first, "row"), len(pack), header.field(first[1]).bits)
        if not header.metadata:
            self.headers[header.name] = row
        return row

    def _is_row_header(self, header: Header) -> bool:
        widths = {field.bits for field in header.fields}
        return len(header.fields) >= MIN_FIELDS and len(widths) == 1 and header.bits % 8 == 0

    def _without_strangers(self, loops: dict[int, list[Loop]]) -> dict[int, list[Loop]]:
        """Drop loops until each part of a pack is used only in loops over this pack."""
        uses = Counter(parts_in({key: part for key, part in self.program.source.items() if key != "field_aliases"}))
        whole = self._headers_used_whole()
        while True:
            inside: Counter[Part] = Counter()
            pack_of: dict[Part, Pack] = {}
            bad: set[Pack] = set()
            for action, found in loops.items():
                for loop in found:
                    primitives = self.program.actions[action].primitives[loop.start : loop.stop]
                    inside.update(parts_in(list(primitives)))
                    if len({self._bits(pack[0]) for pack in loop.packs}) > 1:
                        bad.update(loop.packs)
                    for pack in loop.packs:
                        if not self._fits_row(pack) or pack[0][0] in whole:
                            bad.add(pack)
                        for part in pack:
                            if pack_of.setdefault(part, pack) != pack:
                                bad |= {pack, pack_of[part]}
            bad |= {pack for part, pack in pack_of.items() if inside[part] != uses[part]}
            if not bad:
                return loops
            loops = {action: [loop for loop in found if bad.isdisjoint(loop.packs)] for action, found in loops.items()}

    def _bits(self, part: Part) -> int:
        return self.program.registers[part[0]].bits if len(part) == 1 else self.program.field(*part).bits

    def _fits_row(self, pack: Pack) -> bool:
        if len(set(pack)) != len(pack) or len({len(part) for part in pack}) != 1:
            return False
        if len({self._bits(part) for part in pack}) != 1:
            return False
        if len(pack[0]) == 1:
            return len({self.program.registers[name].size for (name,) in pack}) == 1
        header = self.program.headers[pack[0][0]]
        if header.metadata:
            return True
        return self._is_row_header(header) and pack == tuple((header.name, field.name) for field in header.fields)

    def _headers_used_whole(self) -> set[str]:
        """Return the headers that are copied as a whole, or move within their stack."""
        names: set[str] = set()
        for action in self.program.actions.values():
            names.update(whole_headers(self.program, action.primitives))
        for parser in self.program.source["parsers"]:
            for state in parser["parse_states"]:
                names.update(whole_headers(self.program, state["parser_ops"]))
        return names


def whole_headers(program: Program, node: Json) -> Iterator[str]:
    """Yield the names of headers in operations other than extraction and setting or clearing validity."""
    if isinstance(node, list | tuple):
        for item in node:
            yield from whole_headers(program, item)
    elif isinstance(node, dict):
        if node.get("op") in ("add_header", "remove_header", "valid"):
            return
        value: Json = node.get("value")
        if node.get("type") == "header":
            yield value
        elif node.get("type") in ("header_stack", "stack", "stack_field"):
            stack = program.stacks[value[0] if node["type"] == "stack_field" else value]
            yield from (header.name for header in stack.headers)
        else:
            for item in node.values():
                yield from whole_headers(program, item)


def parts_in(node: Json) -> Iterator[Part]:
    """Yield every use of a field or register in a part of the JSON."""
    if isinstance(node, list | tuple):
        for item in node:
            yield from parts_in(item)
    elif isinstance(node, dict):
        value: Json = node.get("value")
        if node.get("type") == "field":
            yield tuple(value)
        elif node.get("type") == "register_array":
            yield (value,)
        else:
            for key, item in node.items():
                if key == "target" and isinstance(item, list):
                    yield tuple(item)
                yield from parts_in(item)


def find_loops(primitives: Sequence[Json]) -> Iterator[Loop]:
    """Yield the longest repetitions among an action's primitives that rows can replace."""
    shapes = [shape(primitive) for primitive in primitives]
    for primitive in primitives:
        if primitive["op"] in ("_jump", "_jump_if_zero"):  # a loop must not be entered in its middle
            target = int(primitive["parameters"][-1]["value"], 16)
            shapes[target : target + 1] = [f"jumped to: {found}" for found in shapes[target : target + 1]]
    start = 0
    while start < len(primitives):
        best = max((_loop_at(primitives, shapes, start, period) for period in range(1, MAX_PERIOD + 1)), key=_length)
        if best is None:
            start += 1
        else:
            yield best
            start = best.stop


def _length(loop: Loop | None) -> int:
    return 0 if loop is None else loop.stop - loop.start


def _loop_at(primitives: Sequence[Json], shapes: Sequence[str], start: int, period: int) -> Loop | None:
    stop = start + period
    while stop < len(shapes) and shapes[stop] == shapes[stop - period]:
        stop += 1
    iterations = (stop - start) // period
    body = primitives[start : start + period]
    if iterations < MIN_FIELDS or any(item["op"] not in ROW_PRIMITIVES for item in body):
        return None
    uses = [list(parts_in(list(primitives[start + period * index :][:period]))) for index in range(iterations)]
    columns = list(zip(*uses, strict=True))
    packs = tuple(dict.fromkeys(column for column in columns if len(set(column)) > 1))
    varying = {column[0] for column in columns if len(set(column)) > 1}
    if not packs or not all(_works_on_rows(item, varying) for item in body):
        return None
    return Loop(start, period, iterations, packs)


def _works_on_rows(primitive: Json, varying: set[Part]) -> bool:
    """Whether a primitive writes another part in each iteration, a value that can be computed on rows."""
    parameters = primitive["parameters"]
    target = next(parts_in(parameters[0]), None)
    if parameters[0]["type"] == "expression" or target not in varying:
        return False
    if primitive["op"] == "assign":
        return _computes_on_rows(parameters[1], varying)
    array, index = parameters[1:] if primitive["op"] == "register_read" else parameters[:2]
    if (array["value"],) not in varying or not varying.isdisjoint(parts_in(index)):
        return False
    return primitive["op"] == "register_read" or _computes_on_rows(parameters[2], varying)


def _computes_on_rows(node: Json, varying: set[Part]) -> bool:
    while node["type"] == "expression":
        node = node["value"]
        if "op" in node:
            if varying.isdisjoint(parts_in(node)):
                return True
            operands = [node[side] for side in ("left", "right") if node.get(side) is not None]
            return node["op"] in ROW_OPERATORS and all(_computes_on_rows(item, varying) for item in operands)
    return True


def shape(primitive: Json) -> str:
    """Return a primitive as text without the names of registers and fields; headers keep their names."""

    def without_names(node: Json) -> Json:
        if isinstance(node, dict):
            if node.get("type") == "field":
                return {"type": "field", "header": node["value"][0]}
            if node.get("type") == "register_array":
                return {"type": "register_array"}
            return {key: without_names(value) for key, value in node.items() if key != "source_info"}
        if isinstance(node, list):
            return [without_names(item) for item in node]
        return node

    return json.dumps(without_names(primitive), sort_keys=True)
