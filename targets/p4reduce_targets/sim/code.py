# SPDX-License-Identifier: Apache-2.0
"""The intermediate representation: expressions and loop-free statements over local variables.

Without loops, one backward pass finds the live variables. Dead stores are removed, and variables that may be read
before they are written are initialised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

# Precedence of an expression's outermost operator, as in Python's grammar.
TERNARY, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(13)


@dataclass(frozen=True, slots=True)
class Expr:
    """A Python expression without side effects. `bits`: its value is in 0 .. 2**bits - 1; None: unknown range."""

    text: str
    reads: frozenset[str] = frozenset()
    bits: int | None = None
    level: int = ATOM

    def within(self, level: int) -> str:
        """Return the text as an operand of an operator with this precedence."""
        return self.text if self.level >= level else f"({self.text})"


def variable(name: str, bits: int) -> Expr:
    """Return the value of a local variable."""
    return Expr(name, frozenset({name}), bits)


def constant(value: int) -> Expr:
    """Return a number, in hexadecimal where that reads better."""
    text = str(value) if -1024 < value < 1024 else hex(value)
    return Expr(text, frozenset(), None if value < 0 else value.bit_length(), ATOM if value >= 0 else UNARY)


def literal(expr: Expr) -> int | None:
    """Return the value of an expression that is a number, or None."""
    try:
        return int(expr.text, 0)
    except ValueError:
        return None


def compose(text: str, *operands: Expr, bits: int | None = None, level: int = ATOM) -> Expr:
    """Return an expression whose `text` already contains the texts of its operands."""
    return Expr(text, frozenset().union(*(operand.reads for operand in operands)), bits, level)


def fit(expr: Expr, bits: int) -> Expr:
    """Return the expression modulo 2**bits, with a mask only if its value may be larger."""
    if expr.bits is not None and expr.bits <= bits:
        return expr
    mask = constant((1 << bits) - 1)
    number = literal(expr)
    if number is not None:
        return constant(number % (1 << bits))
    return compose(f"{expr.within(BIT_AND)} & {mask.text}", expr, bits=bits, level=BIT_AND)


def negate(expr: Expr) -> Expr:
    """Return the negation of a condition."""
    return compose(f"not {expr.within(NOT)}", expr, bits=1, level=NOT)


@dataclass(slots=True)
class Set:
    """An assignment of an expression, or of its parts in order if there are several targets."""

    targets: tuple[str, ...]
    value: Expr


@dataclass(slots=True)
class Do:
    """A statement with an effect outside the local variables, which is never removed."""

    text: str
    reads: frozenset[str] = frozenset()


@dataclass(slots=True)
class If:
    """A choice of the first branch whose condition holds. A branch with None always runs, and is the last."""

    branches: list[tuple[Expr | None, list[Statement]]]


@dataclass(slots=True)
class Block:
    """A body that `Leave` exits early. Blocks do not nest."""

    body: list[Statement]


@dataclass(slots=True)
class Leave:
    """A jump to the end of the enclosing block."""


Statement = Set | Do | If | Block | Leave


@dataclass(slots=True)
class Live:
    """The result of `prune`: the remaining statements, and the variables that are live before them."""

    body: list[Statement]
    before: frozenset[str]
    written: frozenset[str] = field(default_factory=frozenset)


def assign(target: str, value: Expr) -> Set:
    """Return an assignment to one variable."""
    return Set((target,), value)


def prune(body: Sequence[Statement], after: Iterable[str], leaving: frozenset[str] | None = None) -> Live:
    """Remove statements without effect on the variables in `after`, which are live after the body.

    `leaving` are the variables that are live at the target of a Leave.
    """
    live = frozenset(after)
    written: frozenset[str] = frozenset()
    kept: list[Statement] = []
    for statement in reversed(body):
        if isinstance(statement, Set):
            if live.isdisjoint(statement.targets):
                continue
            targets = tuple(target if target in live else "_" for target in statement.targets)
            live = live.difference(targets) | statement.value.reads
            written = written.union(targets)
            kept.append(replace(statement, targets=targets))
        elif isinstance(statement, Do):
            live |= statement.reads
            kept.append(statement)
        elif isinstance(statement, Leave):
            if leaving is None:
                raise ValueError("Leave outside a block")
            live = leaving
            kept = [statement]
        elif isinstance(statement, Block):
            inner = prune(statement.body, live, live)
            live = inner.before
            written |= inner.written
            if inner.body:
                kept.append(Block(inner.body))
        else:
            pruned = [(condition, prune(branch, live, leaving)) for condition, branch in statement.branches]
            written = written.union(*(inner.written for _, inner in pruned))
            branches = [(condition, inner.body) for condition, inner in pruned]
            while branches and not branches[-1][1]:
                branches.pop()
            if not branches:
                continue
            if branches[-1][0] is not None:
                pruned = [*pruned, (None, Live([], live))]
            live = frozenset().union(*(inner.before for _, inner in pruned))
            live = live.union(*(condition.reads for condition, _ in branches if condition is not None))
            kept.append(If(branches))
    kept.reverse()
    return Live(kept, live, written)


def merge_ifs(body: Sequence[Statement]) -> list[Statement]:
    """Merge adjacent ifs with the same condition, unless the first one's body may change it."""
    merged: list[Statement] = []
    for statement in body:
        last = merged[-1] if merged else None
        if (
            isinstance(statement, If)
            and isinstance(last, If)
            and len(statement.branches) == len(last.branches) == 1
            and statement.branches[0][0] == last.branches[0][0]
            and (condition := last.branches[0][0]) is not None
            and condition.reads.isdisjoint(assigned(last.branches[0][1]))
        ):
            merged[-1] = If([(condition, [*last.branches[0][1], *statement.branches[0][1]])])
        else:
            merged.append(statement)
    return merged


def assigned(body: Iterable[Statement]) -> set[str]:
    """Return the variables that the statements may write."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, Set):
            names.update(statement.targets)
        elif isinstance(statement, If):
            for _, branch in statement.branches:
                names |= assigned(branch)
        elif isinstance(statement, Block):
            names |= assigned(statement.body)
    return names


def render(body: Sequence[Statement], indent: int) -> list[str]:
    """Return the statements as lines of Python."""
    margin = " " * 4 * indent
    lines = []
    for statement in body:
        if isinstance(statement, Set):
            lines.append(f"{margin}{', '.join(statement.targets)} = {statement.value.text}")
        elif isinstance(statement, Do):
            lines.append(margin + statement.text)
        elif isinstance(statement, Leave):
            lines.append(margin + "break")
        elif isinstance(statement, Block):
            lines += [margin + "while True:", *render(statement.body, indent + 1)]
            if not isinstance(statement.body[-1], Leave):
                lines.append(margin + "    break")
        else:
            lines += _render_if(statement, indent)
    return lines or [margin + "pass"]


def _render_if(statement: If, indent: int) -> list[str]:
    margin = " " * 4 * indent
    branches = list(statement.branches)
    if len(branches) == 2 and not branches[0][1] and branches[0][0] is not None and branches[1][0] is None:
        branches = [(negate(branches[0][0]), branches[1][1])]
    lines = []
    word = "if"
    for condition, body in branches:
        # An "else" with a single "if" in it becomes an "elif".
        while condition is None and len(body) == 1 and isinstance(body[0], If) and word == "elif":
            nested = body[0].branches
            for inner_condition, inner_body in nested[:-1]:
                lines += _branch(margin, word, inner_condition, inner_body, indent)
            condition, body = nested[-1]
        lines += _branch(margin, word, condition, body, indent)
        word = "elif"
    return lines


def _branch(margin: str, word: str, condition: Expr | None, body: list[Statement], indent: int) -> list[str]:
    head = "else:" if condition is None else f"{word} {condition.text}:"
    return [margin + head, *render(body, indent + 1)]
