# SPDX-License-Identifier: Apache-2.0
"""Translation of the deparser. Headers that egress cannot change are packed once, before replication (`Frozen`)."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce_targets.sim.code import ATOM, Expr, Set, assign, compose, variable
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.layout import Layout
from p4reduce_targets.sim.program import Header, Program
from p4reduce_targets.sim.rows import Rows

PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Adjacent headers, perhaps with the payload after them, that egress does not change: bytes in one variable."""

    variable: str
    value: Expr

    def statement(self) -> Set:
        """Return the statement that packs them."""
        return assign(self.variable, self.value)


class DeparserCode:
    """The translation of the deparser, of which a v1model program has one."""

    def __init__(self, program: Program, rows: Rows, layouts: dict[str, Layout]) -> None:
        deparser = program.source["deparsers"][0]
        if deparser.get("primitives"):
            raise UnsupportedFeature("a deparser that does more than emit", f"deparser {deparser['name']}")
        self.rows = rows
        self.layouts = layouts
        self.order = [program.headers[name] for name in deparser["order"]]

    def split(self, changing: set[str] | frozenset[str]) -> tuple[list[Frozen], Expr]:
        """Return the parts that do not depend on the variables in `changing`, and the whole frame made with them."""
        frozen: list[Frozen] = []
        parts: list[Expr] = []
        run: list[Expr] = []

        def freeze() -> None:
            if run:
                name = f"frozen_{len(frozen)}"
                frozen.append(Frozen(name, join(run)))
                parts.append(variable(name, 0))
                run.clear()

        for header in self.order:
            emitted = self._emit(header)
            if emitted.reads.isdisjoint(changing):
                run.append(emitted)
            else:
                freeze()
                parts.append(emitted)
        run.append(variable(PAYLOAD, 0))
        freeze()
        return frozen, join(parts)

    def _emit(self, header: Header) -> Expr:
        row = self.rows.headers.get(header.name)
        if row is not None:
            whole = variable(row.variable, header.bits)
            packed = compose(f'{whole.text}.to_bytes({header.bits // 8}, "big")', whole)
        else:
            packed = self.layouts[header.name].pack()
        return compose(f'({packed.text} if {header.valid} else b"")', packed, variable(header.valid, 1))


def join(parts: list[Expr]) -> Expr:
    """Return the concatenation of the parts."""
    if len(parts) == 1:
        return parts[0]
    return compose(f'b"".join(({", ".join(part.text for part in parts)}))', *parts, level=ATOM)
