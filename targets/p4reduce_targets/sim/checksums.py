# SPDX-License-Identifier: Apache-2.0
"""Checksums: verified after the parser, updated before the deparser."""

from __future__ import annotations

from itertools import groupby

from p4reduce_targets.sim.code import AND, SHIFT, SUM, Expr, If, Statement, assign, compose, constant, fit, variable
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.expressions import Expressions
from p4reduce_targets.sim.program import Json, Program

CHECKSUM_ERROR = "checksum_wrong"


class ChecksumCode:
    """Translates the program's checksums. The generated code's globals need `internet_checksum`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calculations = {item["name"]: item for item in program.source.get("calculations", ())}
        self.checksums = sorted(program.source.get("checksums", ()), key=lambda item: int(item["id"]))

    def verify(self) -> list[Statement]:
        """Sets `checksum_wrong`."""
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
        """Sets the target fields."""
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
        inputs = [self._input(item, where) for item in calculation["input"]]
        return self._sum(inputs, where)

    def _input(self, item: Json, where: str) -> tuple[str | None, Expr, int]:
        """The header that a part of the input is left out with, its value and its width."""
        if item["type"] == "field":
            field = self.program.field(*item["value"])
            header = self.program.headers[field.header]
            return None if header.metadata else header.valid, variable(field.variable, field.bits), field.bits
        if item["type"] == "hexstr":
            return None, constant(int(item["value"], 16)), item["bitwidth"]
        raise UnsupportedFeature(f"an input of type {item['type']}", where)

    def _sum(self, inputs: list[tuple[str | None, Expr, int]], where: str) -> Expr:
        """The ones' complement sum of the input as 16-bit words, the last one padded with zeros."""
        groups = [(valid, list(items)) for valid, items in groupby(inputs, key=lambda item: item[0])]
        terms: list[Expr] = []
        place = 0  # bits before this part, modulo 16
        for valid, items in groups:
            parts: list[Expr] = []
            for _, value, bits in items:
                # 2**16 is 1 modulo 0xFFFF, so only the place within a word matters, not which word.
                shift = -(place + bits) % 16
                parts.append(compose(f"({value.within(SHIFT)} << {shift})", value) if shift else value)
                place += bits
            text = " + ".join(part.within(SUM) for part in parts)
            term = compose(text, *parts, level=SUM)
            if valid is not None:
                if len(groups) > 1 and sum(bits for _, _, bits in items) % 16:
                    raise UnsupportedFeature("an input of several headers that are no whole 16-bit words", where)
                term = compose(f"({term.text} if {valid} else 0)", term, variable(valid, 1))
            terms.append(term)
        total = compose(" + ".join(term.text for term in terms) or "0", *terms, level=SUM)
        return compose(f"internet_checksum({total.text})", total, bits=16)


def internet_checksum(total: int) -> int:
    """RFC 1071: the complement of the ones' complement sum of words whose plain sum is `total`."""
    folded = total % 0xFFFF
    return 0xFFFF - folded if folded or not total else 0


def when(conditions: list[Expr], body: list[Statement]) -> list[Statement]:
    """The body, if all conditions hold."""
    if not conditions:
        return body
    text = " and ".join(condition.within(AND + 1) for condition in conditions)
    level = conditions[0].level if len(conditions) == 1 else AND
    return [If([(compose(text, *conditions, bits=1, level=level), body)])]
