# SPDX-License-Identifier: Apache-2.0
"""Topologies and properties of links that `p4reduce topo` accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.network import check_rights
from p4reduce_topos.arguments import build, parse_link_properties
from p4reduce_topos.model import LinkProperties


def test_what_a_wire_does() -> None:
    text = "rate=100mbit, delay=5ms,jitter=500us,queue=64kB,loss=0.01,duplicate=.5"
    expected = LinkProperties(rate=10**8, delay=0.005, jitter=0.0005, queue=64_000, loss=0.01, duplicate=0.5)
    assert parse_link_properties("--edge", text) == expected
    assert parse_link_properties("--edge", "") == LinkProperties()


@pytest.mark.parametrize("text", ["rate", "rate=fast", "delay=5", "loss=-1", "loss=2", "colour=red", "queue=5mbit"])
def test_what_no_wire_does(text: str) -> None:
    with pytest.raises((P4ReduceError, ValueError), match="accepted"):
        parse_link_properties("--edge", text)


def test_shapes() -> None:
    assert len(build("leaf-spine", 4, "", "", "leaves=4,spines=3").switches) == 7
    for name, core, shape in (("star", "rate=1mbit", ""), ("star", "", "leaves=2"), ("tree", "", "depth=two")):
        with pytest.raises(P4ReduceError, match=r"--core|--shape .* accepted"):
            build(name, 4, "", core, shape)


def test_a_topology_of_ones_own(own: Path) -> None:
    made = build(f"{own}:ring", 4, "rate=1gbit", "rate=1mbit", "switches=4")
    assert (made.name, len(made.switches)) == ("ring", 4)
    assert made.link("s4", "s1").properties == LinkProperties(rate=10**6)
    with pytest.raises(P4ReduceError, match=r"accepted for .*own.py:ring is switches=NUMBER, 0 to 9999"):
        build(f"{own}:ring", 4, "", "", "leaves=4")


ROOMS = """
name: two-rooms
switches: [s1, s2]
hosts: {h1: s1, h2: s1, h3: s2}
links: [[s1, s2]]
edge: rate=100mbit
core: rate=10mbit,delay=1ms
roots: [s2]
"""


def test_a_topology_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rooms.yaml"
    file.write_text(ROOMS)
    made = build(str(file), None, "", "", "")
    assert (made.name, made.workers, made.roots) == ("two-rooms", ("h1", "h2", "h3"), ("s2",))
    assert made.link("h3", "s2").properties == LinkProperties(rate=10**8)
    assert made.link("s1", "s2").properties == LinkProperties(rate=10**7, delay=0.001)
    chosen = build(str(file), 2, "rate=1gbit", "loss=0.1", "")
    assert chosen.workers == ("h1", "h2")
    assert (chosen.link("h1", "s1").properties, chosen.link("s1", "s2").properties) == (
        LinkProperties(rate=10**9),
        LinkProperties(loss=0.1),
    )
    other = tmp_path / "rooms.json"
    other.write_text(json.dumps({"switches": ["s1"], "hosts": {"a": "s1", "b": "s1"}}))
    assert (build(str(other), None, "", "", "").name, len(build(str(other), None, "", "", "").links)) == ("rooms", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("switches: [s1]", "has `hosts`, each with its switch, and `switches`"),
        ("- s1", "list: accepted are the keys name, switches"),
        ("colour: red", "the key 'colour': accepted are the keys name"),
        (ROOMS.replace("[[s1, s2]]", "[[s1]]"), r"links: \['s1'\]: accepted is \[SWITCH, SWITCH\]"),
        (ROOMS.replace("[[s1, s2]]", "[[s1, s2, fast]]"), "links: fast: accepted"),
        (ROOMS.replace("h3: s2", "h3: s9"), "'s9', which is not a node"),
        (ROOMS.replace("h3: s2", "'h$(id)': s2"), r"the name 'h\$\(id\)' is not accepted"),
        (ROOMS.replace("rate=100mbit", "colour=red"), "edge: colour=red: accepted"),
        (ROOMS.replace("roots: [s2]", "roots: s2"), r"roots: 's2': accepted is a list"),
        (ROOMS + "hierarchical: 2\n", "hierarchical: 2: accepted is true or false"),
        (ROOMS.replace("h3: s2}", "h3: s2"), "rooms.yaml: .*line"),
    ],
)
def test_what_is_no_topology_in_a_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rooms.yaml").write_text(text)
    with pytest.raises((P4ReduceError, ValueError), match=says):
        build(str(tmp_path / "rooms.yaml"), None, "", "", "")
    (tmp_path / "rooms.json").write_text("{")
    for name, workers, shape, told in (
        ("rooms.json", None, "", "rooms.json: Expecting"), ("none.yaml", None, "", "none.yaml: it cannot be read"),
        ("rooms.yaml", None, "leaves=2", "--shape leaves=2: .* has no parameters"),
    ):  # fmt: skip
        with pytest.raises(P4ReduceError, match=told):
            build(str(tmp_path / name), workers, "", "", shape)


@pytest.mark.parametrize("number", ["0", "1", "-1", "9999", "99999999999999999999", "9" * 5000, "²", ""])
def test_numbers_that_make_no_topology_are_named(own: Path, number: str) -> None:
    shapes = [("star", "others"), ("leaf-spine", "leaves"), ("leaf-spine", "spines"), ("tree", "depth")]
    shapes += [("tree", "fan_out"), ("bottleneck", "pairs"), (f"{own}:ring", "switches")]
    fine = {*((one, "1") for one in ("others", "leaves", "spines", "depth", "fan_out", "pairs"))}
    for name, shape in shapes:
        if (shape, number) in fine | {("others", "0"), ("pairs", "0")}:
            assert build(name, 4, "", "", f"{shape}={number}").workers
            continue
        with pytest.raises((P4ReduceError, ValueError), match=rf"{shape}=.* (accepted|must be)") as refused:
            build(name, 4, "", "", f"{shape}={number}")
        assert f"{shape}={number}" in str(refused.value)


def test_a_function_of_ones_own_that_fails_is_named_with_what_it_was_given(own: Path) -> None:
    own.write_text("def shapeless(workers, edge, *, switches=3): return [1, 2][switches]\n")
    said = r"own.py:shapeless: its function does not accept workers=4, switches=9: IndexError: list index"
    with pytest.raises(P4ReduceError, match=said):
        build(f"{own}:shapeless", 4, "", "", "switches=9")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("{}:square", r"must be a function square\(workers, edge\) in .*own.py"),
        ("{}:Link", r"must be a function Link\(workers, edge\)"),
        ("{}:nothing", "must return a Topology, not None"),
        ("{}", "accepted are star, .* FILE.py:FUNCTION"),
        ("{}/other.py:ring", "there is no file .*other.py"),
    ],
)
def test_what_is_no_topology_of_ones_own(own: Path, name: str, named: str) -> None:
    with pytest.raises((P4ReduceError, ValueError), match=named):
        build(name.format(own), 4, "", "", "")


def test_namespaces_that_are_forbidden_otherwise_are_told_likewise() -> None:
    """A process that has the capabilities may still be forbidden to make namespaces, by seccomp or AppArmor."""
    with pytest.raises(P4ReduceError, match=r"false: ; in a container, start it with --privileged") as refused:
        check_rights("false")
    assert "root may not make network namespaces" in str(refused.value)
