# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on rows: SIMD within a register, without carries from one field into the next."""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_targets.sim.code import (
    BIT_OR,
    COMPARE,
    PRODUCT,
    Do,
    Expr,
    If,
    Statement,
    assign,
    compose,
    constant,
    fit,
    literal,
    variable,
)
from p4reduce_targets.sim.expressions import BITWISE, Expressions, bitwise
from p4reduce_targets.sim.program import Json
from p4reduce_targets.sim.rows import Loop, Row, Rows, parts_in


class RowCode:
    """The translation of the unrolled loops of one action."""

    def __init__(self, rows: Rows, expressions: Expressions, shared: dict[str, object]) -> None:
        self.rows = rows
        self.expressions = expressions
        self.shared = shared  # the generated code's globals

    def loop(self, loop: Loop, primitives: tuple[Json, ...]) -> list[Statement]:
        """Return statements that do all iterations of the loop at once."""
        return [
            statement
            for primitive in primitives[loop.start : loop.start + loop.period]
            for statement in self._primitive(primitive["op"], primitive["parameters"])
        ]

    def _primitive(self, op: str, parameters: Json) -> list[Statement]:
        if op == "register_write":
            bank = self._row(parameters[0])
            index = self.expressions.value(parameters[1])
            value = self.value(parameters[2], bank)
            do = Do(f"{bank.variable}[{index.text}] = {value.text}", index.reads | value.reads)
            return guarded(index, self.rows.banks[bank.variable][1], do)
        target = self._row(parameters[0])
        if op == "register_read":
            bank = self._row(parameters[1])
            index = self.expressions.value(parameters[2])
            read = compose(f"{bank.variable}[{index.text}]", index, bits=bank.fields * bank.bits)
            return guarded(index, self.rows.banks[bank.variable][1], assign(target.variable, read))
        return [assign(target.variable, self.value(parameters[1], target))]

    def _row(self, node: Json) -> Row:
        return self.rows.parts[tuple(node["value"]) if node["type"] == "field" else (node["value"],)]

    def value(self, node: Json, row: Row) -> Expr:
        """Return an expression for all fields of a row."""
        while node["type"] == "expression" and "op" not in node["value"]:
            node = node["value"]
        if node["type"] == "field" and tuple(node["value"]) in self.rows.parts:
            return variable(self._row(node).variable, row.fields * row.bits)
        if any(part in self.rows.parts for part in parts_in(node)):
            return self._operation(node["value"], row)
        return broadcast(fit(self.expressions.value(node), row.bits), row, self.shared)

    def _operation(self, node: Json, row: Row) -> Expr:
        bits = row.fields * row.bits
        right = self.value(node["right"], row)
        if node["op"] == "~":
            return bitwise("^", right, constant((1 << bits) - 1))
        left = self.value(node["left"], row)
        if node["op"] in BITWISE:
            return bitwise(node["op"], left, right)
        name = f"{'add' if node['op'] == '+' else 'subtract'}_{row.fields}x{row.bits}"
        self.shared[name] = adder(row) if node["op"] == "+" else subtracter(row)
        return compose(f"{name}({left.text}, {right.text})", left, right, bits=bits)


def broadcast(scalar: Expr, row: Row, shared: dict[str, object]) -> Expr:
    """Return a row with the same number in all fields."""
    bits = row.fields * row.bits
    number = literal(scalar)
    if number is not None:
        return constant(number * row.ones)
    name = f"ones_{row.fields}x{row.bits}"
    shared[name] = row.ones
    return compose(f"{scalar.within(PRODUCT)} * {name}", scalar, bits=bits, level=PRODUCT)


def guarded(index: Expr, size: int, statement: Statement) -> list[Statement]:
    """Return the statement with a check of the index: BMv2 neither reads nor writes beyond an array's end."""
    if index.bits is not None and 1 << index.bits <= size:
        return [statement]
    number = literal(index)
    if number is not None and 0 <= number < size:
        return [statement]
    inside = f"{index.within(BIT_OR)} < {size}"
    if index.bits is None:
        inside = f"0 <= {inside}"
    return [If([(compose(inside, index, bits=1, level=COMPARE), [statement])])]


def adder(row: Row) -> Callable[[int, int], int]:
    """Return a function that adds rows modulo 2**bits, the top bits apart, so that no field carries into the next."""
    top = row.ones << (row.bits - 1)
    rest = (1 << (row.fields * row.bits)) - 1 - top

    def add(one: int, other: int) -> int:
        return ((one & rest) + (other & rest)) ^ ((one ^ other) & top)

    return add


def subtracter(row: Row) -> Callable[[int, int], int]:
    """Return a function that subtracts rows modulo 2**bits, with the top bits set, so that no field borrows."""
    top = row.ones << (row.bits - 1)
    rest = (1 << (row.fields * row.bits)) - 1 - top

    def subtract(one: int, other: int) -> int:
        return ((one | top) - (other & rest)) ^ ((one ^ ~other) & top)

    return subtract
