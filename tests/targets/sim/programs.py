# SPDX-License-Identifier: Apache-2.0
"""Builds tiny v1model programs as p4c's JSON, so that a test shows all of the program that it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from p4reduce_targets.sim import Switch, load

STANDARD = {
    "ingress_port": 9,
    "egress_spec": 9,
    "egress_port": 9,
    "instance_type": 32,
    "packet_length": 32,
    "mcast_grp": 16,
    "egress_rid": 16,
    "checksum_error": 1,
    "parser_error": 32,
    "priority": 3,
    "_padding": 3,
}
ERRORS = [
    "NoError",
    "PacketTooShort",
    "NoMatch",
    "StackOutOfBounds",
    "HeaderTooShort",
    "ParserTimeout",
    "ParserInvalidArgument",
]

Json = Any


def field(name: str) -> Json:
    """Return a reference to `header.field`. `header.$valid$` is the header's validity."""
    header, _, member = name.rpartition(".")
    return {"type": "field", "value": [header, member]}


def number(value: int) -> Json:
    return {"type": "hexstr", "value": hex(value)}


def argument(index: int) -> Json:
    """Return an action's parameter, as an operand of its primitives."""
    return {"type": "runtime_data", "value": index}


def header(name: str) -> Json:
    return {"type": "header", "value": name}


def named(kind: str, name: str) -> Json:
    """Return a reference to a register_array, counter_array or header_stack."""
    return {"type": kind, "value": name}


def op(operator: str, left: Json, right: Json, cond: Json = None) -> Json:
    value = {"op": operator, "left": left, "right": right}
    if cond is not None:
        value["cond"] = cond
    return {"type": "expression", "value": {"type": "expression", "value": value}}


def do(primitive: str, *parameters: Json) -> Json:
    return {"op": primitive, "parameters": list(parameters)}


def assign(target: str, value: Json) -> Json:
    return do("assign", field(target), value)


def extract(name: str, kind: str = "regular") -> Json:
    return {"op": "extract", "parameters": [{"type": kind, "value": name}]}


class Builder:
    """A builder of programs. Headers are parsed and sent in order, and `run` and `table` are applied in order.

    `headers`: name -> field -> bits; `name[2]` makes a stack of two. `metadata` is the struct `scalars`. What the
    program sends goes to port 1 unless it says otherwise.
    """

    def __init__(self, headers: Mapping[str, Mapping[str, int]], metadata: Mapping[str, int] | None = None) -> None:
        self.types: list[Json] = []
        self.headers: list[Json] = []
        self.stacks: list[Json] = []
        self.actions: list[Json] = []
        self.registers: list[Json] = []
        self.counters: list[Json] = []
        self.calculations: list[Json] = []
        self.checksums: list[Json] = []
        self.states: list[Json] = []
        self.nodes: dict[str, list[Json]] = {"ingress": [], "egress": []}
        self.extra: dict[str, Json] = {}
        width = sum((metadata or {}).values())
        self._type("scalars", {**(metadata or {}), "_padding": -width % 8 or 8}, metadata=True)
        self._type("standard_metadata", STANDARD, metadata=True)
        self.order: list[str] = []
        for name, fields in headers.items():
            base, _, size = name.partition("[")
            if not size:
                self.order.append(self._type(name, fields))
                continue
            members = [self._type(f"{base}[{index}]", fields) for index in range(int(size[:-1]))]
            ids = [item["id"] for item in self.headers if item["name"] in members]
            self.stacks.append({"name": base, "id": len(self.stacks), "header_type": base, "header_ids": ids})
            self.order += members
        self.run(assign("standard_metadata.egress_spec", number(1)))

    def _type(self, name: str, fields: Mapping[str, int], metadata: bool = False) -> str:
        self.types.append({"name": f"{name}_t", "id": len(self.types), "fields": [[*f, False] for f in fields.items()]})
        item = {"name": name, "id": len(self.headers), "header_type": f"{name}_t", "metadata": metadata}
        self.headers.append(item)
        return name

    def state(self, name: str, ops: Sequence[Json], key: Sequence[Json] = (), **cases: str | None) -> Builder:
        """Add a parser state; the first one is the start. `cases`: v<hex>, v<hex>m<hex> with a mask, or default."""
        transitions = []
        for case, target in cases.items():
            value, _, mask = case[1:].partition("m")
            kind = {"type": "default", "value": None} if case == "default" else {"type": "hexstr", "value": value}
            transitions.append({**kind, "mask": mask or None, "next_state": target})
        item = {"parser_ops": list(ops), "transition_key": list(key), "transitions": transitions}
        return self._add(self.states, name, **item)

    def _add(self, items: list[Json], name: str, **item: Json) -> Builder:
        """Add an item to a list of its kind. Its id is its index there."""
        items.append({"name": name, "id": len(items), **item})
        return self

    def action(self, name: str, *primitives: Json, **parameters: int) -> int:
        """Add an action with parameters of these widths, and return its id."""
        data = [{"name": parameter, "bitwidth": bits} for parameter, bits in parameters.items()]
        self._add(self.actions, name, runtime_data=data, primitives=list(primitives))
        return len(self.actions) - 1

    def run(self, *primitives: Json, pipeline: str = "ingress") -> Builder:
        """Add a table without keys that always runs these primitives."""
        name = f"step{len(self.actions)}"
        action = self.action(name, *primitives)
        self.table(f"tbl_{name}", {}, [action], default=action, const=True, pipeline=pipeline)
        return self

    def table(
        self,
        name: str,
        key: Mapping[str, str],
        actions: Sequence[int],
        default: int | None = None,
        *,
        data: Sequence[int] = (),
        const: bool = False,
        size: int = 16,
        counts: bool = False,
        pipeline: str = "ingress",
        **more: Json,
    ) -> Builder:
        """Add a table, applied next. `key`: field -> exact, lpm or ternary. `more` replaces parts of its JSON."""
        keys = [
            {"match_type": kind, "name": name, "target": name.rsplit(".", 1), "mask": None}
            for name, kind in key.items()
        ]
        kinds = set(key.values())
        item = {
            "name": name,
            "id": len(self.nodes[pipeline]),
            "key": keys,
            "match_type": "ternary" if "ternary" in kinds else "lpm" if "lpm" in kinds else "exact",
            "type": "simple",
            "max_size": size,
            "with_counters": counts,
            "support_timeout": False,
            "direct_meters": None,
            "action_ids": list(actions),
            "actions": [self.actions[action]["name"] for action in actions],
        }
        if default is not None:
            values = [hex(value) for value in data]
            called = {"action_id": default, "action_data": values}
            item["default_entry"] = {**called, "action_const": const, "action_entry_const": const}
        self.nodes[pipeline].append({**item, **more})
        return self

    def condition(self, expression: Json, true_next: str | None, false_next: str | None, name: str = "if") -> Builder:
        """Add a branch in ingress to named nodes."""
        node = {"name": name, "id": 0, "expression": expression, "true_next": true_next, "false_next": false_next}
        self.nodes["ingress"].append(node)
        return self

    def register(self, name: str, size: int, bits: int) -> Builder:
        return self._add(self.registers, name, size=size, bitwidth=bits)

    def counter(self, name: str, size: int) -> Builder:
        return self._add(self.counters, name, size=size, is_direct=False)

    def checksum(self, target: str, inputs: Sequence[Json], *, verify: bool, condition: Json = None) -> Builder:
        """Add a checksum over fields and constants, which is verified or else updated."""
        name = f"checksum{len(self.checksums)}"
        self._add(self.calculations, name, algo="csum16", input=list(inputs))
        kind = {"type": "generic", "calculation": name, "verify": verify, "update": not verify}
        return self._add(self.checksums, name, target=target.rsplit(".", 1), if_cond=condition, **kind)

    def json(self) -> Json:
        """Return the whole program as JSON."""
        states = self.states
        if not states:
            self.state("start", [extract(name) for name in self.order])
        return {
            "header_types": self.types,
            "headers": self.headers,
            "header_stacks": self.stacks,
            "errors": [[name, index] for index, name in enumerate(ERRORS)],
            "parsers": [{"name": "parser", "id": 0, "init_state": states[0]["name"], "parse_states": states}],
            "deparsers": [{"name": "deparser", "id": 0, "order": self.order}],
            "register_arrays": self.registers,
            "counter_arrays": self.counters,
            "calculations": self.calculations,
            "checksums": self.checksums,
            "actions": self.actions,
            "pipelines": [self._pipeline(name) for name in ("ingress", "egress")],
            **self.extra,
        }

    def _pipeline(self, name: str) -> Json:
        nodes = self.nodes[name]
        following = [*(node["name"] for node in nodes[1:]), None]
        for node, after in zip(nodes, following, strict=False):
            if "expression" not in node and "next_tables" not in node:
                node["next_tables"] = dict.fromkeys(node["actions"], after)
                node["base_default_next"] = after
        return {
            "name": name,
            "id": 0,
            "init_table": nodes[0]["name"] if nodes else None,
            "action_profiles": [],
            "tables": [node for node in nodes if "expression" not in node],
            "conditionals": [node for node in nodes if "expression" in node],
        }

    def load(self) -> Switch:
        return load(json.dumps(self.json()), seed=1)
