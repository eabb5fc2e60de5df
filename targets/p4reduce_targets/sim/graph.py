# SPDX-License-Identifier: Apache-2.0
"""Turns a graph of nodes without cycles into nested ifs: a branch runs up to where all its alternatives meet again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from p4reduce_targets.sim.code import Expr, If, Statement, merge_ifs

MAX_COPIES = 50  # of an average node, in programs whose branches cross

Place = Hashable  # a node's key in its graph; None is the end


@dataclass(slots=True)
class Node:
    """Statements, then the first branch whose condition holds (None holds always)."""

    body: list[Statement]
    branches: list[tuple[Expr | None, Place]] = field(default_factory=list)


class CycleError(ValueError):
    """The graph has a cycle; `place` is on it."""

    def __init__(self, place: Place) -> None:
        super().__init__(f"cycle through {place!r}")
        self.place = place


class TangleError(ValueError):
    """Branches cross so much that their code, with copies, would be too long."""


def structure(graph: Mapping[Place, Node], entry: Place) -> list[Statement]:
    """Return the whole graph from `entry` on as statements. Raises CycleError or TangleError."""
    return _Structurer(graph).emit(entry)


class _Structurer:
    def __init__(self, graph: Mapping[Place, Node]) -> None:
        self.graph = graph
        self.joins: dict[Place, Place] = {}  # node -> where all its ways meet: its immediate post-dominator
        self.depth: dict[Place, int] = {None: 0}
        self.budget = MAX_COPIES * len(graph)

    def emit(self, entry: Place) -> list[Statement]:
        self._find_joins(entry)
        return self._emit(entry, None)

    def _find_joins(self, entry: Place) -> None:
        open_places: set[Place] = set()
        stack = [entry]
        while stack:
            place = stack[-1]
            if place in self.depth:
                stack.pop()
                continue
            successors = {target for _, target in self.graph[place].branches} or {None}
            waiting = [target for target in successors if target not in self.depth]
            if place in open_places and waiting:
                raise CycleError(place)
            if waiting:
                open_places.add(place)
                stack += waiting
                continue
            meeting = successors.pop()
            for other in successors:
                meeting = self._meet(meeting, other)
            self.joins[place] = meeting
            self.depth[place] = self.depth[meeting] + 1
            stack.pop()

    def _meet(self, one: Place, other: Place) -> Place:
        while one != other:
            if self.depth[one] >= self.depth[other]:
                one = self.joins[one]
            else:
                other = self.joins[other]
        return one

    def _emit(self, place: Place, stop: Place) -> list[Statement]:
        body: list[Statement] = []
        while place != stop:
            self.budget -= 1
            if self.budget < 0:
                raise TangleError("branches cross too much")
            node = self.graph[place]
            body += node.body
            join = self.joins[place]
            if len(node.branches) == 1 and node.branches[0][0] is None:
                place = node.branches[0][1]
                continue
            branches = [(condition, self._emit(target, join)) for condition, target in node.branches]
            if branches:
                body.append(If(branches))
            place = join
        return merge_ifs(body)
