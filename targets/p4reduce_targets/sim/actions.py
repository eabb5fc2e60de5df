# SPDX-License-Identifier: Apache-2.0
"""Translation of actions: each primitive of BMv2 becomes statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from p4reduce_targets.sim.code import (
    COMPARE,
    SUM,
    Do,
    Expr,
    If,
    Leave,
    Set,
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
from p4reduce_targets.sim.expressions import Expressions
from p4reduce_targets.sim.graph import CycleError, Node, NodeKey, structure
from p4reduce_targets.sim.program import Action, Header, Json, Program, Stack
from p4reduce_targets.sim.rowcode import RowCode, guarded
from p4reduce_targets.sim.rows import Loop, Rows

DROP_PORT = 511
LENGTH = "packet_size"  # variable: the packet's length with its present headers; `frame_size`: as received
EXITED = "exited"

Translator: TypeAlias = Callable[[Json], list[Statement]]


class Primitives:
    """The translation of the primitives of one action or parser state."""

    def __init__(self, program: Program, rows: Rows, where: str, action: Action | None = None) -> None:
        self.program = program
        self.rows = rows
        self.where = where
        self.expressions = Expressions(program, where, action)
        self._translators: dict[str, Translator] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_header_stack": self._assign_stack,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": self._push,
            "pop": self._pop,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": self._count,
            "execute_meter": self._execute_meter,
            "modify_field_rng_uniform": self._random,
            "mark_to_drop": lambda _: self._drop(),
            "drop": lambda _: self._drop(),
            "exit": lambda _: [assign(EXITED, constant(1))],
            "no_op": lambda _: [],
            "log_msg": lambda _: [],
        }

    def translate(self, primitive: Json) -> list[Statement]:
        """Return the statements of one primitive. Raises UnsupportedFeature."""
        translator = self._translators.get(primitive["op"])
        if translator is None:
            raise UnsupportedFeature(f"primitive {primitive['op']}", self.where)
        return translator(primitive["parameters"])

    def value(self, node: Json) -> Expr:
        """Return the value of a parameter."""
        return self.expressions.value(node)

    def _assign(self, parameters: Json) -> list[Statement]:
        return [self.set(parameters[0], self.value(parameters[1]))]

    def set(self, target: Json, value: Expr) -> Set:
        """Return the assignment to a field, modulo its width."""
        if target["type"] != "field":
            raise UnsupportedFeature(f"writing to an operand of type {target['type']}", self.where)
        field = self.program.field(*target["value"])
        if field == self.program.intrinsic("priority", "intrinsic_metadata.priority"):
            raise UnsupportedFeature("a queue's priority", self.where)
        return assign(field.variable, fit(value, field.bits))

    def _header(self, node: Json) -> Header:
        if node["type"] != "header":
            raise UnsupportedFeature(f"a header given by an operand of type {node['type']}", self.where)
        return self.program.headers[node["value"]]

    def _stack(self, node: Json) -> Stack:
        if node["type"] != "header_stack":
            raise UnsupportedFeature(f"a header stack given by an operand of type {node['type']}", self.where)
        return self.program.stacks[node["value"]]

    def _assign_header(self, parameters: Json) -> list[Statement]:
        return copy_header(self._header(parameters[0]), self._header(parameters[1]))

    def _assign_stack(self, parameters: Json) -> list[Statement]:
        to, source = self._stack(parameters[0]), self._stack(parameters[1])
        pairs = zip(to.headers, source.headers, strict=True)
        copies = [statement for pair in pairs for statement in copy_header(*pair)]
        return [assign(to.count, variable(source.count, 32)), *copies]

    def _add_header(self, parameters: Json) -> list[Statement]:
        header = self._header(parameters[0])
        if header.metadata:
            return []
        row = self.rows.headers.get(header.name)
        variables = [row.variable] if row else [field.variable for field in header.fields]
        zeros: list[Statement] = [assign(name, constant(0)) for name in variables]
        valid = assign(header.valid, constant(1))
        return [If([(negate(variable(header.valid, 1)), [*zeros, valid, grow(header.bits // 8)])])]

    def _remove_header(self, parameters: Json) -> list[Statement]:
        header = self._header(parameters[0])
        if header.metadata:
            return []
        invalid = assign(header.valid, constant(0))
        return [If([(variable(header.valid, 1), [invalid, grow(-header.bits // 8)])])]

    def _push(self, parameters: Json) -> list[Statement]:
        stack, number = self._stack(parameters[0]), self._number(parameters[1])
        size = len(stack.headers)
        moves: list[Statement] = []
        for index in range(size - 1, number - 1, -1):
            moves += move_header(stack.headers[index], stack.headers[index - number])
        moves += [assign(header.valid, constant(0)) for header in stack.headers[:number]]
        count = variable(stack.count, 32)
        return [*moves, assign(stack.count, compose(f"min({count.text} + {number}, {size})", count, bits=32))]

    def _pop(self, parameters: Json) -> list[Statement]:
        stack, number = self._stack(parameters[0]), self._number(parameters[1])
        size = len(stack.headers)
        moves: list[Statement] = []
        for index in range(size - number):
            moves += move_header(stack.headers[index], stack.headers[index + number])
        moves += [assign(header.valid, constant(0)) for header in stack.headers[max(size - number, 0) :]]
        count = variable(stack.count, 32)
        return [*moves, assign(stack.count, compose(f"max({count.text} - {number}, 0)", count, bits=32))]

    def _number(self, node: Json) -> int:
        if node["type"] != "hexstr":
            raise UnsupportedFeature("pushing or popping a number of headers that is no constant", self.where)
        return int(node["value"], 16)

    def _register_read(self, parameters: Json) -> list[Statement]:
        register = self.program.registers[parameters[1]["value"]]
        index = self.value(parameters[2])
        cell = compose(f"{register.variable}[{index.text}]", index, bits=register.bits)
        return guarded(index, register.size, self.set(parameters[0], cell))

    def _register_write(self, parameters: Json) -> list[Statement]:
        register = self.program.registers[parameters[0]["value"]]
        index = self.value(parameters[1])
        value = fit(self.value(parameters[2]), register.bits)
        write = Do(f"{register.variable}[{index.text}] = {value.text}", index.reads | value.reads)
        return guarded(index, register.size, write)

    def _count(self, parameters: Json) -> list[Statement]:
        counter = self.program.counters[parameters[0]["value"]]
        index = self.value(parameters[1])
        packets = Do(f"{counter.packets}[{index.text}] += 1", index.reads)
        size = Do(f"{counter.bytes}[{index.text}] += frame_size", index.reads | {"frame_size"})
        return [*guarded(index, counter.size, packets), *guarded(index, counter.size, size)]

    def _execute_meter(self, parameters: Json) -> list[Statement]:
        meter = self.program.meters[parameters[0]["value"]]
        index = self.value(parameters[1])
        amount = variable("frame_size", 32) if meter.bytes else constant(1)
        execute = Do(f"{meter.variable}.execute({index.text}, {amount.text})", index.reads | amount.reads)
        colour = self.set(parameters[2], compose(f"{meter.variable}.colour", bits=2))
        return [*guarded(index, meter.size, execute), *guarded(index, meter.size, colour)]

    def _random(self, parameters: Json) -> list[Statement]:
        low, high = self.value(parameters[1]), self.value(parameters[2])
        number = compose(f"random_integer({low.text}, {high.text})", low, high, bits=high.bits)
        draw = self.set(parameters[0], number)
        lowest, highest = literal(low), literal(high)
        if lowest is not None and highest is not None:
            return [draw] if lowest <= highest else []
        possible = compose(f"{low.within(SUM)} <= {high.within(SUM)}", low, high, bits=1, level=COMPARE)
        return [If([(possible, [draw])])]

    def _drop(self) -> list[Statement]:
        statements: list[Statement] = []
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            field = self.program.intrinsic(name, f"intrinsic_metadata.{name}")
            if field is not None:
                statements.append(assign(field.variable, constant(value)))
        return statements


def grow(size: int) -> Set:
    """Return the change of the packet's length when a header of `size` bytes is added, or removed (negative)."""
    length = variable(LENGTH, 32)
    return assign(LENGTH, compose(f"{length.text} {'+' if size >= 0 else '-'} {abs(size)}", length, level=SUM))


def copy_header(to: Header, source: Header) -> list[Statement]:
    """Return the assignment of a header, which copies the fields of a valid header only."""
    if to.metadata:
        return _copy_fields(to, source)
    valid = variable(source.valid, 1)
    return [assign(to.valid, valid), If([(valid, _copy_fields(to, source))])]


def move_header(to: Header, source: Header) -> list[Statement]:
    """Return the move of a header within its stack: validity and all fields."""
    return [assign(to.valid, variable(source.valid, 1)), *_copy_fields(to, source)]


def _copy_fields(to: Header, source: Header) -> list[Statement]:
    pairs = zip(to.fields, source.fields, strict=True)
    return [assign(one.variable, variable(other.variable, other.bits)) for one, other in pairs]


class ActionCode:
    """The translation of whole actions."""

    def __init__(self, program: Program, rows: Rows, shared: dict[str, object]) -> None:
        self.program = program
        self.rows = rows
        self.shared = shared

    def body(self, action: Action) -> list[Statement]:
        """Return the action's statements, which end with a Leave after an exit. Raises UnsupportedFeature."""
        where = f"action {action.name}"
        primitives = Primitives(self.program, self.rows, where, action)
        rowcode = RowCode(self.rows, primitives.expressions, self.shared)
        loops = {loop.start: loop for loop in self.rows.loops[action.id]}
        graph: dict[NodeKey, Node] = {}
        index = 0
        while index < len(action.primitives):
            graph[index], index = self._node(action, index, primitives, rowcode, loops.get(index))
        if not graph:
            return []
        try:
            body = structure(graph, 0)
        except CycleError as error:
            raise UnsupportedFeature("a jump backwards", where) from error
        if any(primitive["op"] == "exit" for primitive in action.primitives):
            body.append(If([(variable(EXITED, 1), [Leave()])]))
        return body

    def _node(
        self, action: Action, index: int, primitives: Primitives, rowcode: RowCode, loop: Loop | None
    ) -> tuple[Node, int]:
        """Return the node that begins at a primitive, and the index of the next node."""

        def node_key(number: int) -> NodeKey:
            return number if number < len(action.primitives) else None

        if loop is not None:
            return Node(rowcode.loop(loop, action.primitives), [(None, node_key(loop.stop))]), loop.stop
        primitive = action.primitives[index]
        after = node_key(index + 1)
        if primitive["op"] == "_jump":
            return Node([], [(None, node_key(int(primitive["parameters"][0]["value"], 16)))]), index + 1
        if primitive["op"] == "_jump_if_zero":
            condition = primitives.expressions.condition(primitive["parameters"][0])
            zero = node_key(int(primitive["parameters"][1]["value"], 16))
            return Node([], [(condition, after), (None, zero)]), index + 1
        return Node(primitives.translate(primitive), [(None, after)]), index + 1
