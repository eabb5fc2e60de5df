# SPDX-License-Identifier: Apache-2.0
"""Translation of expressions. BMv2 computes with unbounded integers, as Python does, and p4c adds the masks."""

from __future__ import annotations

from p4reduce_targets.sim.code import (
    AND,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    COMPARE,
    NOT,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    TERNARY,
    UNARY,
    Expr,
    compose,
    constant,
    literal,
    negate,
    variable,
)
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.program import Action, Json, Program

MAX_SHIFT = 4096  # no field is longer: after a shift further left, only zeros of it remain

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
BITWISE = {"&": BIT_AND, "|": BIT_OR, "^": BIT_XOR}
ARITHMETIC = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT}


class Expressions:
    """The translation of expressions in one action, whose parameters they may read, parser state or condition."""

    def __init__(self, program: Program, where: str, action: Action | None = None) -> None:
        self.program = program
        self.where = where
        self.action = action
        self.counts: dict[str, int] = {}  # in a parser: the headers extracted to each stack so far

    def value(self, node: Json) -> Expr:
        """Return a number, or a condition as 0 or 1. Raises UnsupportedFeature."""
        kind, value = node["type"], node["value"]
        if kind == "expression":
            return self.value(value) if "op" not in value else self._operation(value)
        if kind == "field":
            return self.field(*value)
        if kind == "hexstr":
            return constant(int(value, 16))
        if kind == "bool":
            return constant(int(value))
        if kind in ("local", "runtime_data") and self.action is not None:
            parameter = self.action.parameters[value]
            return variable(parameter.variable, parameter.bits)
        if kind == "stack_field":
            return self.last(*value)
        raise UnsupportedFeature(f"an operand of type {kind}", self.where)

    def condition(self, node: Json) -> Expr:
        """Return a value that is only tested for 0."""
        while node["type"] == "expression" and node["value"].get("op", "b2d") == "b2d":
            node = node["value"] if "op" not in node["value"] else node["value"]["right"]
        return self.value(node)

    def field(self, header: str, name: str) -> Expr:
        """Return a header's field. The hidden field `$valid$` is its validity."""
        if name == "$valid$":
            return self.valid(header)
        field = self.program.field(header, name)
        return variable(field.variable, field.bits)

    def last(self, stack: str, name: str) -> Expr:
        """Return a field of the last header extracted to a stack. Raises UnsupportedFeature outside parsers."""
        if not self.counts.get(stack):
            raise UnsupportedFeature(
                f"the last header of stack {stack} where that is known only at run time", self.where
            )
        return self.field(self.program.stacks[stack].headers[self.counts[stack] - 1].name, name)

    def valid(self, header: str) -> Expr:
        """Return whether a header is valid, which metadata always is."""
        instance = self.program.headers[header]
        return constant(1) if instance.metadata else variable(instance.valid, 1)

    def _operation(self, node: Json) -> Expr:
        op = node["op"]
        if op == "valid":
            return self.valid(node["right"]["value"])
        if op in ("last_stack_index", "size_stack"):
            count = variable(self.program.stacks[node["right"]["value"]].count, 32)
            return count if op == "size_stack" else compose(f"{count.text} - 1", count, level=SUM)
        if op in ("d2b", "b2d", "not", "~"):
            return self._unary(op, self.value(node["right"]))
        if op == "?":
            return self._choice(self.value(node["cond"]), self.value(node["left"]), self.value(node["right"]))
        if op in ("dereference_header_stack", "dereference_stack", "access_field"):
            raise UnsupportedFeature("an index into a header stack that is known only at run time", self.where)
        if node.get("left") is None:
            raise UnsupportedFeature(f"operator {op}", self.where)
        return self._binary(op, node["left"], node["right"])

    def _unary(self, op: str, operand: Expr) -> Expr:
        if op == "not":
            return negate(operand)
        if op == "~":
            return compose(f"~{operand.within(UNARY)}", operand, level=UNARY)
        if operand.bits == 1 and operand.level not in (COMPARE, NOT, AND, OR):
            return operand
        if op == "d2b":
            return compose(f"{operand.within(BIT_OR)} != 0", operand, bits=1, level=COMPARE)
        return compose(f"1 if {operand.within(OR)} else 0", operand, bits=1, level=TERNARY)

    def _choice(self, condition: Expr, one: Expr, other: Expr) -> Expr:
        bits = None if one.bits is None or other.bits is None else max(one.bits, other.bits)
        text = f"{one.within(OR)} if {condition.within(OR)} else {other.within(TERNARY)}"
        return compose(text, condition, one, other, bits=bits, level=TERNARY)

    def _binary(self, op: str, left_node: Json, right_node: Json) -> Expr:
        if op in ("==h", "!=h"):
            raise UnsupportedFeature(f"comparing headers ({op})", self.where)
        if op not in COMPARISONS | BITWISE.keys() | ARITHMETIC.keys() | {"==b", "!=b", "and", "or", "<<", ">>"} | {
            "usat_cast"
        }:
            raise UnsupportedFeature(f"operator {op}", self.where)
        left, right = self.value(left_node), self.value(right_node)
        if op in COMPARISONS:
            text = f"{left.within(BIT_OR)} {op} {right.within(BIT_OR)}"
            return compose(text, left, right, bits=1, level=COMPARE)
        if op in ("==b", "!=b"):
            text = f"({negate(left).text}) {op[:2]} ({negate(right).text})"
            return compose(text, left, right, bits=1, level=COMPARE)
        if op in ("and", "or"):
            level = AND if op == "and" else OR
            return compose(f"{left.within(level)} {op} {right.within(level)}", left, right, bits=1, level=level)
        if op in BITWISE:
            return bitwise(op, left, right)
        if op in ("<<", ">>"):
            return self._shift(op, left, right, right_node)
        if op == "usat_cast":
            width = int(right_node["value"], 16)
            text = f"min(max({left.text}, 0), {(1 << width) - 1:#x})"
            return compose(text, left, bits=width)
        return arithmetic(op, left, right)

    def _shift(self, op: str, left: Expr, right: Expr, right_node: Json) -> Expr:
        text = f"{left.within(SHIFT)} {op} {right.within(SUM)}"
        if right_node["type"] == "hexstr":
            bits = left.bits
            if bits is not None:
                distance = int(right_node["value"], 16)
                bits = bits + distance if op == "<<" else max(bits - distance, 0)
            return compose(text, left, right, bits=bits, level=SHIFT)
        if op == ">>":
            return compose(text, left, right, bits=left.bits, level=SHIFT)
        limited = f"{text} if {right.within(BIT_OR)} < {MAX_SHIFT} else 0"
        return compose(limited, left, right, level=TERNARY)


def bitwise(op: str, left: Expr, right: Expr) -> Expr:
    """Return `left op right`, or one side alone if the other is a constant mask without effect."""
    known = [side.bits for side in (left, right) if side.bits is not None]
    if op == "&":
        for side, mask in ((left, right), (right, left)):
            number = literal(mask)
            if side.bits is not None and number is not None and ~number & ((1 << side.bits) - 1) == 0:
                return side
        bits = min(known, default=None)
    else:
        bits = max(known) if len(known) == 2 else None
    level = BITWISE[op]
    return compose(f"{left.within(level)} {op} {right.within(level + 1)}", left, right, bits=bits, level=level)


def arithmetic(op: str, left: Expr, right: Expr) -> Expr:
    """Return +, -, *, / or % of two values."""
    bits: int | None = None
    if left.bits is not None and right.bits is not None:
        bits = {
            "+": max(left.bits, right.bits) + 1,
            "-": None,
            "*": left.bits + right.bits,
            "/": left.bits,
            "%": right.bits,
        }[op]
    level = ARITHMETIC[op]
    symbol = "//" if op == "/" else op
    return compose(f"{left.within(level)} {symbol} {right.within(level + 1)}", left, right, bits=bits, level=level)
