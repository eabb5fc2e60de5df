# SPDX-License-Identifier: Apache-2.0
"""Translation of the parser: its states become statements.

A state is translated once for each number of headers that the stacks can have by then, which unrolls loops over header
stacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_targets.sim.actions import Primitives
from p4reduce_targets.sim.code import (
    AND,
    BIT_AND,
    COMPARE,
    SHIFT,
    SUM,
    Block,
    Expr,
    If,
    Leave,
    Statement,
    assign,
    compose,
    constant,
    fit,
    literal,
    negate,
    variable,
)
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.graph import CycleError, Node, NodeKey, TangleError, structure
from p4reduce_targets.sim.layout import Layout
from p4reduce_targets.sim.program import Header, Json, Program
from p4reduce_targets.sim.rows import Rows

ERROR = "parse_error"
AT = "at"  # variable: the parser's offset in the frame
UNKNOWN_ERROR = 2**31 - 1  # BMv2's number for a core error that the program does not declare


@dataclass(frozen=True, slots=True)
class Visit:
    """A parser state together with the number of headers in each stack."""

    state: str
    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"state {self.state}"


class ParserCode:
    """The translation of the parser, of which a v1model program has one."""

    def __init__(self, program: Program, rows: Rows, layouts: dict[str, Layout]) -> None:
        parser = program.source["parsers"][0]
        self.program = program
        self.rows = rows
        self.layouts = layouts
        self.states = {state["name"]: state for state in parser["parse_states"]}
        self.start = parser["init_state"]
        self.stacks = list(program.stacks.values())

    def body(self) -> list[Statement]:
        """Return statements that parse `frame` and set headers, `at` (the payload's offset) and the error's number."""
        graph: dict[NodeKey, Node] = {}
        entry = Visit(self.start, (0,) * len(self.stacks))
        waiting = [entry]
        while waiting:
            visit = waiting.pop()
            if visit not in graph:
                graph[visit] = _State(self, visit).node()
                waiting += [target for _, target in graph[visit].branches if isinstance(target, Visit)]
        try:
            body = structure(graph, entry)
        except CycleError as cycle:
            raise UnsupportedFeature("a loop that extracts to no stack", f"parser, {cycle.key}") from cycle
        except TangleError as error:
            raise UnsupportedFeature("a parser whose states cross so much", "parser") from error
        no_error = constant(self.error("NoError", 0))
        return [assign(ERROR, no_error), assign(AT, constant(0)), Block(body)]

    def error(self, name: str, default: int = UNKNOWN_ERROR) -> int:
        """Return the number of a core error."""
        return self.program.errors.get(name, default)


class _State:
    """The translation of one visit. `done` counts the bytes extracted since `at`, which is set once, at the end."""

    def __init__(self, parser: ParserCode, visit: Visit) -> None:
        self.parser = parser
        self.program = parser.program
        self.state = parser.states[visit.state]
        self.done = 0
        self.failed = False
        self.body: list[Statement] = []
        self.where = f"parser state {visit.state}"
        self.primitives = Primitives(parser.program, parser.rows, self.where)
        names = [stack.name for stack in parser.stacks]
        self.counts = self.primitives.expressions.counts = dict(zip(names, visit.counts, strict=True))

    def node(self) -> Node:
        for operation in self.state["parser_ops"]:
            self._operation(operation["op"], operation["parameters"])
            if self.failed:
                return Node(self.body)
        self._settle()
        keys = [self._key(key) for key in self.state["transition_key"]]
        branches: list[tuple[Expr | None, NodeKey]] = []
        default: NodeKey = None
        for transition in self.state["transitions"]:
            target = transition["next_state"]
            key = None if target is None else Visit(target, tuple(self.counts.values()))
            condition = self._condition(transition, keys)
            if condition is None:
                default = key
                if not keys:
                    break
            else:
                branches.append((condition, key))
        return Node(self.body, [*branches, (None, default)])

    def _operation(self, op: str, parameters: Json) -> None:
        if op == "extract":
            self._extract_to(parameters[0])
        elif op == "set":
            self.body.append(self.primitives.set(parameters[0], self._value(parameters[1])))
        elif op == "verify":
            failed = negate(self.primitives.value(parameters[0]))
            self._fail(failed, self.primitives.value(parameters[1]))
        elif op == "shift":
            self._advance(constant(8 * parameters[0]))
        elif op == "advance":
            self._advance(self.primitives.value(parameters[0]))
        elif op == "primitive" and parameters[0]["op"] not in ("_jump", "_jump_if_zero", "exit"):
            self.body += self.primitives.translate(parameters[0])
        else:
            raise UnsupportedFeature(f"parser operation {op}", self.where)

    def _extract_to(self, node: Json) -> None:
        if node["type"] == "regular":
            self._extract(self.program.headers[node["value"]])
            return
        if node["type"] != "stack":
            raise UnsupportedFeature(f"extracting to an operand of type {node['type']}", self.where)
        stack = self.program.stacks[node["value"]]
        count = self.counts[stack.name]
        if count >= len(stack.headers):
            self._fail(None, constant(self.parser.error("StackOutOfBounds")))
            return
        self._extract(stack.headers[count])
        self.counts[stack.name] = count + 1
        self.body.append(assign(stack.count, constant(count + 1)))

    def _extract(self, header: Header) -> None:
        size = header.bits // 8
        self._need(size)
        row = self.parser.rows.headers.get(header.name)
        if row is not None:
            begin, end = self._position(self.done), self._position(self.done + size)
            whole = Expr(f'int.from_bytes(frame[{begin}:{end}], "big")', frozenset({"frame", AT}), header.bits)
            self.body.append(assign(row.variable, whole))
        else:
            self.body += self.parser.layouts[header.name].unpack(self._position(self.done))
        self.body.append(assign(header.valid, constant(1)))
        self.done += size

    def _advance(self, bits: Expr) -> None:
        number = literal(bits)
        if number is not None:
            if number % 8:
                self._fail(None, constant(self.parser.error("ParserInvalidArgument")))
            self._need(number // 8)
            self.done += number // 8
            return
        self._settle()
        odd = compose(f"{bits.within(BIT_AND)} & 7", bits, bits=3, level=BIT_AND)
        self._fail(odd, constant(self.parser.error("ParserInvalidArgument")))
        distance = compose(f"{bits.within(SHIFT)} >> 3", bits, level=SHIFT)
        short = compose(f"frame_size - {AT} < {distance.within(SUM)}", bits, self._at(), bits=1, level=COMPARE)
        self._fail(short, constant(self.parser.error("PacketTooShort")))
        self.body.append(assign(AT, compose(f"{AT} + ({distance.text})", distance, self._at(), level=SUM)))

    def _need(self, size: int) -> None:
        if size:
            short = compose(f"frame_size - {AT} < {self.done + size}", self._at(), bits=1, level=COMPARE)
            self._fail(short, constant(self.parser.error("PacketTooShort")))

    def _fail(self, condition: Expr | None, error: Expr) -> None:
        """End the parser with an error if the condition holds (None: always), with `at` after the extracted headers."""
        self.failed = self.failed or condition is None
        failure: list[Statement] = [*self._settled(), assign(ERROR, fit(error, 32)), Leave()]
        self.body += failure if condition is None else [If([(condition, failure)])]

    def _settle(self) -> None:
        self.body += self._settled()
        self.done = 0

    def _settled(self) -> list[Statement]:
        if not self.done:
            return []
        return [assign(AT, compose(f"{AT} + {self.done}", self._at(), level=SUM))]

    def _at(self) -> Expr:
        return compose(AT, variable(AT, 32), variable("frame_size", 32))

    def _position(self, distance: int) -> str:
        return f"{AT} + {distance}" if distance else AT

    def _value(self, node: Json) -> Expr:
        if node["type"] != "lookahead":
            return self.primitives.value(node)
        offset, width = node["value"]
        size = (width + 7) // 8  # BMv2 requires this many bytes, whatever the offset
        short = compose(f"frame_size - {AT} < {self.done + size}", self._at(), bits=1, level=COMPARE)
        self._fail(short, constant(self.parser.error("PacketTooShort")))
        return self._ahead(offset, width)

    def _ahead(self, offset: int, width: int) -> Expr:
        """Return bits of the frame that are not extracted yet; beyond its end are zeros."""
        first, last = offset // 8, (offset + width + 7) // 8
        begin, end = self._position(self.done + first), self._position(self.done + last)
        part = f'int.from_bytes(frame[{begin}:{end}].ljust({last - first}, b"\\0"), "big")'
        whole = Expr(part, frozenset({"frame", AT}), 8 * (last - first))
        spare = 8 * last - offset - width
        if spare:
            whole = compose(f"{whole.text} >> {spare}", whole, bits=8 * (last - first) - spare, level=SHIFT)
        return fit(whole, width)

    def _key(self, key: Json) -> Expr:
        """Return one field of a transition's key."""
        kind, value = key["type"], key["value"]
        if kind == "field":
            return self.primitives.expressions.field(*value)
        if kind == "lookahead":
            return self._ahead(*value)
        if kind == "stack_field":
            return self.primitives.expressions.last(*value)
        raise UnsupportedFeature(f"a transition key of type {kind}", self.where)

    def _condition(self, transition: Json, keys: list[Expr]) -> Expr | None:
        kind = transition.get("type", "default" if transition["value"] == "default" else "hexstr")
        if kind == "default" or not keys:
            return None
        if kind != "hexstr":
            raise UnsupportedFeature(f"a transition of type {kind}", self.where)
        widths = [8 * ((key.bits or 0) + 7 >> 3) for key in keys]
        values = split(int(transition["value"], 16), widths)
        masks = split(-1 if transition["mask"] is None else int(transition["mask"], 16), widths)
        tests: list[Expr] = []
        for key, value, mask in zip(keys, values, masks, strict=True):
            full = (1 << (key.bits or 0)) - 1
            if mask & full == full:
                tests.append(compose(f"{key.within(COMPARE + 1)} == {value:#x}", key, level=COMPARE))
            elif mask:
                masked = f"{key.within(BIT_AND)} & {mask & full:#x} == {value & mask & full:#x}"
                tests.append(compose(masked, key, level=COMPARE))
        return compose(" and ".join(test.text for test in tests) or "True", *tests, bits=1, level=AND)


def split(number: int, widths: list[int]) -> list[int]:
    """Return an integer's parts of these widths, the most significant first."""
    parts = []
    for width in reversed(widths):
        parts.append(number & ((1 << width) - 1))
        number >>= width
    return parts[::-1]
