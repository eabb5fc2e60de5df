# SPDX-License-Identifier: Apache-2.0
"""Structured control flow: an acyclic graph becomes nested ifs, whose branches end at the immediate post-dominator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from p4reduce_targets.sim.code import Expr, If, Statement, merge_ifs

MAX_COPIES = 50  # of an average node, if branches cross

NodeKey = Hashable  # a node's key in its graph; None is the end


@dataclass(slots=True)
class Node:
    """Statements, followed by the first branch whose condition holds. None always holds."""

    body: list[Statement]
    branches: list[tuple[Expr | None, NodeKey]] = field(default_factory=list)


class CycleError(ValueError):
    """A cycle in the graph, through the node `key`."""

    def __init__(self, key: NodeKey) -> None:
        super().__init__(f"cycle through {key!r}")
        self.key = key


class TangleError(ValueError):
    """A graph whose branches cross so much that the code, with its copies of nodes, would be too long."""


def structure(graph: Mapping[NodeKey, Node], entry: NodeKey) -> list[Statement]:
    """Return the graph from `entry` on as statements. Raises CycleError or TangleError."""
    return _Structurer(graph).emit(entry)


class _Structurer:
    def __init__(self, graph: Mapping[NodeKey, Node]) -> None:
        self.graph = graph
        self.joins: dict[NodeKey, NodeKey] = {}  # node -> its immediate post-dominator, where all its paths meet
        self.depth: dict[NodeKey, int] = {None: 0}
        self.budget = MAX_COPIES * len(graph)

    def emit(self, entry: NodeKey) -> list[Statement]:
        self._find_joins(entry)
        return self._emit(entry, None)

    def _find_joins(self, entry: NodeKey) -> None:
        on_path: set[NodeKey] = set()
        stack = [entry]
        while stack:
            key = stack[-1]
            if key in self.depth:
                stack.pop()
                continue
            successors = {target for _, target in self.graph[key].branches} or {None}
            waiting = [target for target in successors if target not in self.depth]
            if key in on_path and waiting:
                raise CycleError(key)
            if waiting:
                on_path.add(key)
                stack += waiting
                continue
            join = successors.pop()
            for other in successors:
                join = self._common_join(join, other)
            self.joins[key] = join
            self.depth[key] = self.depth[join] + 1
            stack.pop()

    def _common_join(self, one: NodeKey, other: NodeKey) -> NodeKey:
        while one != other:
            if self.depth[one] >= self.depth[other]:
                one = self.joins[one]
            else:
                other = self.joins[other]
        return one

    def _emit(self, key: NodeKey, stop: NodeKey) -> list[Statement]:
        body: list[Statement] = []
        while key != stop:
            self.budget -= 1
            if self.budget < 0:
                raise TangleError("branches cross too much")
            node = self.graph[key]
            body += node.body
            join = self.joins[key]
            if len(node.branches) == 1 and node.branches[0][0] is None:
                key = node.branches[0][1]
                continue
            branches = [(condition, self._emit(target, join)) for condition, target in node.branches]
            if branches:
                body.append(If(branches))
            key = join
        return merge_ifs(body)
