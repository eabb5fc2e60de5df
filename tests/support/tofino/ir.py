# SPDX-License-Identifier: Apache-2.0
"""p4c's intermediate representation (IR), as `p4test --toJSON` writes it: a graph of nodes with a kind and fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Node:
    """A node of the IR. `kind` is its class in p4c, and its fields are attributes. Vectors are lists of nodes."""

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self.kind = kind
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self.kind} has no {name}, only {', '.join(self.__dict__)}")

    def __repr__(self) -> str:
        return f"{self.kind}({getattr(self, 'name', '')})" if "name" in self.__dict__ else self.kind


def load(text: str | bytes) -> Node:
    """Return the program from its JSON. Raises ValueError if the JSON is no program."""
    nodes: dict[int, Any] = {}

    def node(fields: dict[str, Any]) -> Any:
        number, kind = fields.pop("Node_ID", None), fields.pop("Node_Type", None)
        fields.pop("Source_Info", None)
        if number is None:
            return fields
        if kind is None:
            return nodes[number]
        made = fields["vec"] if "vec" in fields else Node(kind, fields)
        nodes[number] = made
        return made

    program = json.loads(text, object_hook=node)
    if not isinstance(program, Node) or program.kind != "P4Program":
        raise ValueError("this is not the JSON of a P4 program")
    return program


def read(path: Path) -> Node:
    return load(path.read_bytes())


def named(nodes: list[Node], kind: str) -> Iterator[Node]:
    """Return the nodes of a kind."""
    return (node for node in nodes if node.kind == kind)


def annotation(node: Node, name: str) -> str | None:
    """Return the text of an annotation such as @name("..."): "" if it has none, None if there is no annotation."""
    for item in node.annotations:
        if item.name == name:
            body = item.body if not isinstance(item.body, dict) else item.body["value"]
            # p4c stores annotations that it does not know as tokens.
            return next((part.text if part.kind == "AnnotationToken" else part.value for part in body), "")
    return None
