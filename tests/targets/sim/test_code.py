# SPDX-License-Identifier: Apache-2.0
"""The statements between JSON and Python: what may be dropped, and how graphs become nested ifs."""

from __future__ import annotations

import pytest

from p4reduce_targets.sim.code import (
    SUM,
    Block,
    Do,
    If,
    Leave,
    Set,
    Statement,
    assign,
    compose,
    constant,
    fit,
    prune,
    render,
    variable,
)
from p4reduce_targets.sim.graph import CycleError, Node, NodeKey, TangleError, structure


def read(name: str) -> Statement:
    return Do(f"use({name})", frozenset({name}))


def source(body: list[Statement]) -> str:
    return "\n".join(render(body, 0))


def test_stores_that_nobody_reads_go() -> None:
    x, y = variable("x", 8), variable("y", 8)
    live = prune([assign("y", x), assign("x", y), assign("x", constant(1)), read("x")], {"z"})
    assert source(live.body) == "x = 1\nuse(x)"
    assert live.before == {"z"}


def test_branches_keep_what_either_way_needs() -> None:
    x = variable("x", 1)
    body: list[Statement] = [assign("a", constant(1)), If([(x, [assign("a", constant(2)), assign("b", constant(3))])])]
    live = prune(body, {"a"})
    assert source(live.body) == "a = 1\nif x:\n    a = 2"
    assert live.before == {"x"}
    assert live.written == {"a"}
    assert prune(body, set()).body == []
    assert prune([body[1]], {"a"}).before == {"a", "x"}


def test_leaving_a_block_skips_stores() -> None:
    x = variable("x", 1)
    body: list[Statement] = [
        Block([assign("a", constant(1)), If([(x, [Leave()])]), assign("a", constant(2))]),
        read("a"),
    ]
    assert source(prune(body, ()).body) == (
        "while True:\n    a = 1\n    if x:\n        break\n    a = 2\n    break\nuse(a)"
    )
    body[0] = Block([assign("b", constant(1)), Leave(), assign("a", constant(2))])
    assert prune(body, ()).before == {"a"}
    with pytest.raises(ValueError, match="outside"):
        prune([Leave()], ())


def test_unpacked_parts_that_nobody_reads_have_no_name() -> None:
    live = prune([Set(("a", "b", "c"), compose("f()"))], {"b"})
    assert source(live.body) == "_, b, _ = f()"
    assert live.written == {"_", "b"}


def test_masks_only_where_needed() -> None:
    x = variable("x", 8)
    assert fit(x, 8).text == "x"
    assert fit(compose("x + x", x, bits=9, level=SUM), 8).text == "x + x & 255"
    assert fit(constant(0x1FF), 8).text == "255"
    assert fit(constant(-1), 8).text == "255"


def chain(*names: str) -> dict[NodeKey, Node]:
    """Return a graph of nodes that use their own names, without branches yet."""
    return {name: Node([read(name)]) for name in names}


def test_diamond_meets_again() -> None:
    graph = chain("top", "left", "right", "end")
    graph["top"].branches = [(variable("x", 1), "left"), (None, "right")]
    graph["left"].branches = graph["right"].branches = [(None, "end")]
    assert source(structure(graph, "top")) == "use(top)\nif x:\n    use(left)\nelse:\n    use(right)\nuse(end)"


def test_else_if_stays_flat() -> None:
    graph = chain("a", "b", "c")
    graph |= {
        "first": Node([], [(variable("x", 1), "a"), (None, "second")]),
        "second": Node([], [(variable("y", 1), "b"), (None, "c")]),
    }
    assert source(structure(graph, "first")) == "if x:\n    use(a)\nelif y:\n    use(b)\nelse:\n    use(c)"


def test_crossing_branches_are_copied() -> None:
    graph = chain("a", "b", "end")
    graph |= {
        "first": Node([], [(variable("x", 1), "second"), (None, "b")]),
        "second": Node([], [(variable("y", 1), "a"), (None, "b")]),
    }
    for name in "ab":
        graph[name].branches = [(None, "end")]
    text = source(structure(graph, "first"))
    assert text == "if x:\n    if y:\n        use(a)\n    else:\n        use(b)\nelse:\n    use(b)\nuse(end)"


def test_neighbours_that_ask_the_same_are_joined() -> None:
    x = variable("x", 1)
    graph: dict[NodeKey, Node] = {
        1: Node([If([(x, [read("a")])])], [(None, 2)]),
        2: Node([If([(x, [assign("x", constant(0))])])], [(None, 3)]),
        3: Node([If([(x, [read("b")])])]),
    }
    assert source(structure(graph, 1)) == "if x:\n    use(a)\n    x = 0\nif x:\n    use(b)"


def test_cycles_and_tangles_are_told() -> None:
    graph = chain("a", "b")
    graph["a"].branches, graph["b"].branches = [(None, "b")], [(variable("x", 1), "a"), (None, None)]
    with pytest.raises(CycleError) as cycle:
        structure(graph, "a")
    assert cycle.value.key in graph
    ladder: dict[NodeKey, Node] = {}
    for step in range(20):
        # Both sides go on to both sides of the next step, and never meet.
        for side in range(2):
            ways: list[NodeKey] = [(step + 1, 0), (step + 1, 1)] if step < 19 else [None, None]
            ladder[step, side] = Node([read("x")], [(variable("y", 1), ways[0]), (None, ways[1])])
    with pytest.raises(TangleError):
        structure(ladder, (0, 0))
