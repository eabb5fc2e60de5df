# SPDX-License-Identifier: Apache-2.0
"""Translation of checksums, which are verified after the parser and updated before the deparser."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from p4reduce_targets.sim.code import AND, SHIFT, SUM, Expr, If, Statement, assign, compose, constant, fit, variable
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.expressions import Expressions
from p4reduce_targets.sim.program import Json, Program

CHECKSUM_ERROR = "checksum_wrong"


@dataclass(frozen=True, slots=True)
class Input:
    """A part of a checksum's input, which is omitted if its header is invalid."""

    valid: Expr
    value: Expr
    bits: int


class ChecksumCode:
    """The translation of the program's checksums, to calls of this module's functions."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calculations = {item["name"]: item for item in program.source.get("calculations", ())}
        self.checksums = sorted(program.source.get("checksums", ()), key=lambda item: int(item["id"]))

    def verify(self) -> list[Statement]:
        """Return statements that set `checksum_wrong`."""
        statements: list[Statement] = [assign(CHECKSUM_ERROR, constant(0))]
        for checksum in self.checksums:
            if checksum.get("verify", True):
                target = self.program.field(*checksum["target"])
                conditions = self._conditions(checksum)
                header = self.program.headers[target.header]
                if not header.metadata:
                    conditions.insert(0, variable(header.valid, 1))
                total = self._checksum(checksum)
                differs = compose(f"{total.text} != {target.variable}", total, variable(target.variable, target.bits))
                statements += when([*conditions, differs], [assign(CHECKSUM_ERROR, constant(1))])
        return statements

    def update(self) -> list[Statement]:
        """Return statements that set the target fields."""
        statements: list[Statement] = []
        for checksum in self.checksums:
            if checksum.get("update", True):
                target = self.program.field(*checksum["target"])
                total = fit(self._checksum(checksum), target.bits)
                statements += when(self._conditions(checksum), [assign(target.variable, total)])
        return statements

    def _conditions(self, checksum: Json) -> list[Expr]:
        condition = checksum.get("if_cond")
        if condition is None:
            return []
        return [Expressions(self.program, f"condition of checksum {checksum['name']}").value(condition)]

    def _checksum(self, checksum: Json) -> Expr:
        where = f"checksum {checksum['name']}"
        if checksum["type"] != "generic":
            raise UnsupportedFeature(f"a checksum of type {checksum['type']}", where)
        calculation = self.calculations[checksum["calculation"]]
        if calculation["algo"] not in ("csum16", "cksum16"):
            raise UnsupportedFeature(f"algorithm {calculation['algo']}", f"{where}, calculation {calculation['name']}")
        return checksum_of([self._input(item, where) for item in calculation["input"]])

    def _input(self, item: Json, where: str) -> Input:
        if item["type"] == "field":
            field = self.program.field(*item["value"])
            header = self.program.headers[field.header]
            valid = constant(1) if header.metadata else variable(header.valid, 1)
            return Input(valid, variable(field.variable, field.bits), field.bits)
        if item["type"] == "hexstr":
            return Input(constant(1), constant(int(item["value"], 16)), item["bitwidth"])
        raise UnsupportedFeature(f"an input of type {item['type']}", where)


def checksum_of(inputs: list[Input]) -> Expr:
    """Return the checksum of the concatenated inputs, as 16-bit words of which the last is padded with zeros."""
    groups = [(valid, list(items)) for valid, items in groupby(inputs, key=lambda item: item.valid)]
    if any(sum(item.bits for item in items) % 16 for _, items in groups[:-1]):
        # If a header in the middle is invalid, the fields after it have other offsets within their words.
        parts = [f"({item.valid.text}, {item.value.text}, {item.bits})" for item in inputs]
        operands = [expr for item in inputs for expr in (item.valid, item.value)]
        return compose(f"checksum_of_parts(({', '.join(parts)},))", *operands, bits=16)
    terms = [constant(0)]
    for valid, items in groups:
        bits_so_far = 0
        parts_of_words: list[Expr] = []
        for item in items:
            bits_so_far += item.bits
            # 2**16 is 1 modulo 0xFFFF, so only the offset within a word matters, not which word it is.
            shift = -bits_so_far % 16
            shifted = compose(f"({item.value.within(SHIFT)} << {shift})", item.value)
            parts_of_words.append(shifted if shift else item.value)
        text = " + ".join(part.within(SUM) for part in parts_of_words)
        terms.append(compose(f"({text} if {valid.text} else 0)", valid, *parts_of_words))
    total = compose(" + ".join(term.text for term in terms[1:] or terms), *terms)
    return compose(f"internet_checksum({total.text})", total, bits=16)


def internet_checksum(total: int) -> int:
    """Return the complement of the ones' complement sum (RFC 1071) of words with the ordinary sum `total`."""
    folded = total % 0xFFFF
    return 0xFFFF - folded if folded or not total else 0


def checksum_of_parts(parts: Iterable[tuple[int, int, int]]) -> int:
    """Return the checksum of the concatenated parts (valid, value, bits), without the invalid ones."""
    whole = length = 0
    for valid, value, bits in parts:
        if valid:
            whole, length = whole << bits | value, length + bits
    return internet_checksum(whole << (-length % 16))


def when(conditions: list[Expr], body: list[Statement]) -> list[Statement]:
    """Return statements that run the body if all conditions hold."""
    if not conditions:
        return body
    text = " and ".join(condition.within(AND + 1) for condition in conditions)
    level = conditions[0].level if len(conditions) == 1 else AND
    return [If([(compose(text, *conditions, bits=1, level=level), body)])]
