# SPDX-License-Identifier: Apache-2.0
"""Translation of the ingress and egress pipelines: tables, conditions and, inlined into these, actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from p4reduce_targets.dataplane import Call, Exact, Lpm, Ternary
from p4reduce_targets.sim.actions import EXITED, ActionCode
from p4reduce_targets.sim.code import (
    BIT_AND,
    BIT_OR,
    COMPARE,
    TERNARY,
    Block,
    Do,
    Expr,
    If,
    Set,
    Statement,
    assign,
    compose,
    constant,
    variable,
)
from p4reduce_targets.sim.errors import UnsupportedFeature
from p4reduce_targets.sim.expressions import Expressions
from p4reduce_targets.sim.graph import CycleError, Node, NodeKey, TangleError, structure
from p4reduce_targets.sim.program import Action, Json, Program
from p4reduce_targets.sim.tables import ExactTable, KeyField, MaskedTable, Table

MATCHES = {"exact": Exact, "lpm": Lpm, "ternary": Ternary}


@dataclass(frozen=True, slots=True)
class Step:
    """An action of a table as a node in the pipeline's graph; -1: the node after all actions."""

    table: str
    action: int


class PipelineCode:
    """The translation of one pipeline, with its tables. It adds the globals that the code needs to `shared`."""

    def __init__(self, program: Program, pipeline: Json, actions: ActionCode, shared: dict[str, object]) -> None:
        self.program = program
        self.pipeline = pipeline
        self.actions = actions
        self.shared = shared
        self.tables: dict[str, Table] = {}

    def body(self) -> list[Statement]:
        """Return the pipeline as a block. Raises UnsupportedFeature."""
        graph: dict[NodeKey, Node] = {}
        for item in self.pipeline["tables"]:
            self._add_table(graph, item)
        for item in self.pipeline.get("conditionals", ()):
            condition = Expressions(self.program, f"condition {item['name']}").value(item["expression"])
            graph[item["name"]] = Node([], [(condition, item["true_next"]), (None, item["false_next"])])
        for item in self.pipeline.get("action_calls", ()):
            body = self.actions.body(self.program.actions[item["action_id"]])
            graph[item["name"]] = Node(body, [(None, item["next_node"])])
        entry = self.pipeline["init_table"]
        where = f"pipeline {self.pipeline['name']}"
        try:
            body = structure(graph, entry) if entry is not None else []
        except (CycleError, TangleError) as error:
            raise UnsupportedFeature(f"its control flow ({error})", where) from error
        return [assign(EXITED, constant(0)), Block(body)] if body else []

    def _add_table(self, graph: dict[NodeKey, Node], item: Json) -> None:
        name = item["name"]
        default = item.get("default_entry")
        if not item["key"] and default is not None and default.get("action_const"):
            action = self.program.actions[default["action_id"]]
            values = [int(value, 16) for value in default["action_data"]]
            pairs = zip(action.parameters, values, strict=True)
            following = item["next_tables"].get("__MISS__", item["next_tables"].get(action.name))
            arguments: list[Statement] = [assign(parameter.variable, constant(value)) for parameter, value in pairs]
            graph[name] = Node([*arguments, *self.actions.body(action)], [(None, following)])
            return
        table = self.tables[name] = self._make_table(item)
        self._fill(table, item)
        graph[name] = self._apply(graph, item, table)

    def _apply(self, graph: dict[NodeKey, Node], item: Json, table: Table) -> Node:
        """Return the node that looks up an entry and branches to its action, whose node is added to the graph."""
        names = self.program.names
        entry = names.new(table.name, "entry")
        number = names.new(table.name, "action")
        defaults = names.new(table.name, "default")
        self.shared[defaults] = table.default
        hit = names.new(table.name, "hit")
        found = Expr(entry, frozenset({entry}))
        body: list[Statement] = [assign(entry, self._lookup(item, table, names.new(table.name, "lookup")))]
        body.append(assign(hit, compose(f"{entry} is not None", found, bits=1, level=COMPARE)))
        if table.counts:
            count = f"cell = {entry}[1]; cell[0] += 1; cell[1] += frame_size"
            body.append(If([(variable(hit, 1), [Do(count, frozenset({entry, "frame_size"}))])]))
        body.append(assign(entry, compose(f"{entry} or {defaults}[0]", found, level=TERNARY)))
        body.append(assign(number, compose(f"{entry}[0]", found)))
        after: NodeKey = item.get("base_default_next")
        following = item["next_tables"]
        if "__HIT__" in following or "__MISS__" in following:
            after = Step(table.name, -1)
            graph[after] = Node([], [(variable(hit, 1), following.get("__HIT__")), (None, following.get("__MISS__"))])
        branches: list[tuple[Expr | None, NodeKey]] = []
        for position, action in enumerate(table.actions):
            step = Step(table.name, position)
            target = after if isinstance(after, Step) else following[action.name]
            graph[step] = Node([*self._arguments(entry, action), *self.actions.body(action)], [(None, target)])
            branches.append((compose(f"{number} == {position}", variable(number, 8), bits=1, level=COMPARE), step))
        return Node(body, [*branches, (None, after)])

    def _arguments(self, entry: str, action: Action) -> list[Statement]:
        if not action.parameters:
            return []
        reads = frozenset({entry})
        targets = tuple(parameter.variable for parameter in action.parameters)
        if len(targets) == 1:
            return [assign(targets[0], Expr(f"{entry}[2]", reads))]
        return [Set(("_", "_", *targets), Expr(entry, reads))]

    def _lookup(self, item: Json, table: Table, name: str) -> Expr:
        values = [self._key_value(part) for part in item["key"]]
        text = ", ".join(value.text for value in values)
        if isinstance(table, MaskedTable):
            self.shared[name] = table.lookup
            return compose(f"{name}({text})", *values)
        assert isinstance(table, ExactTable)
        self.shared[name] = table.entries.get
        return compose(f"{name}({text})" if len(values) == 1 else f"{name}(({text}))", *values)

    def _key_value(self, part: Json) -> Expr:
        header_name, field_name = part["target"]
        value = Expressions(self.program, "table key").field(header_name, field_name)
        mask = part.get("mask")
        if mask is not None:
            value = compose(f"{value.within(BIT_AND)} & {int(mask, 16):#x}", value, bits=value.bits, level=BIT_AND)
        header = self.program.headers[header_name]
        if header.metadata or field_name == "$valid$":
            return value
        # BMv2 matches zeros for the fields of an invalid header.
        valid = variable(header.valid, 1)
        return compose(f"({value.within(BIT_OR)} if {header.valid} else 0)", value, valid, bits=value.bits)

    def _make_table(self, item: Json) -> Table:
        where = f"table {item['name']}"
        if item["type"] != "simple":
            raise UnsupportedFeature(f"a table of type {item['type']}", where)
        if item.get("direct_meters") is not None:
            raise UnsupportedFeature("a direct meter", where)
        if item.get("support_timeout"):
            raise UnsupportedFeature("an idle timeout", where)
        key = []
        for part in item["key"]:
            name = part.get("name") or ".".join(part["target"])
            if part["match_type"] not in MATCHES:
                raise UnsupportedFeature(f"match kind {part['match_type']}", f"{where}, key field {name}")
            bits = Expressions(self.program, where).field(*part["target"]).bits
            assert bits is not None
            key.append(KeyField(name, bits, part["match_type"]))
        actions = [self.program.actions[number] for number in item["action_ids"]]
        kind = ExactTable if all(field.match == "exact" for field in key) else MaskedTable
        return kind(item["name"], key, actions, item["max_size"], item["with_counters"])

    def _fill(self, table: Table, item: Json) -> None:
        default = item.get("default_entry")
        if default is not None:
            call = self._call(default["action_id"], default["action_data"])
            table.set_program_default(call, bool(default.get("action_const")))
        entries = item.get("entries", ())
        for entry in entries:
            key = tuple(self._match(match) for match in entry["match_key"])
            action = entry["action_entry"]
            # In BMv2 the smallest number wins, in P4Runtime the largest.
            priority = 2**31 - entry["priority"] if any(isinstance(match, Ternary) for match in key) else 0
            table.insert(key, priority, self._call(action["action_id"], action["action_data"]))
        table.constant_entries = bool(entries)

    def _call(self, action: int, data: list[Any]) -> Call:
        return Call(self.program.actions[action].name, tuple(int(value, 16) for value in data))

    def _match(self, match: Json) -> Exact | Lpm | Ternary:
        kind, value = match["match_type"], int(match["key"], 16)
        if kind == "lpm":
            return Lpm(value, match["prefix_length"])
        return Ternary(value, int(match["mask"], 16)) if kind == "ternary" else Exact(value)
