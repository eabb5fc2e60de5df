# SPDX-License-Identifier: Apache-2.0
"""Values that are derived from a topology. Tests check them by walking along its links."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce_controller.base.toml import tomllib
from p4reduce_topos.emulation.settings import settings
from p4reduce_topos.model import Link, LinkProperties, Topology
from p4reduce_topos.topologies import clos, leaf_spine, star, tree, two_racks
from p4reduce_topos.topologies.catalogue import TOPOLOGIES

DEFAULTS = [design.build() for design in TOPOLOGIES.values()]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Return any connected network of up to six switches and eight hosts."""
    switches = [f"s{number}" for number in range(1, draw(st.integers(1, 6)) + 1)]
    hosts = [f"h{number}" for number in range(1, draw(st.integers(1, 8)) + 1)]
    pairs = {(draw(st.sampled_from(switches[:at])), switch) for at, switch in enumerate(switches) if at}
    if len(switches) > 1:
        extra = draw(st.lists(st.tuples(st.sampled_from(switches), st.sampled_from(switches)), max_size=5))
        pairs |= {(min(pair), max(pair)) for pair in extra if pair[0] != pair[1]}
    links = [Link(a, b) for a, b in sorted(pairs)] + [Link(host, draw(st.sampled_from(switches))) for host in hosts]
    workers = hosts[: draw(st.integers(1, len(hosts)))]
    roots = draw(st.lists(st.sampled_from(switches), min_size=1, unique=True))
    return Topology("any", tuple(hosts), tuple(switches), tuple(links), tuple(workers), tuple(roots))


def walk(topology: Topology, start: str, end: str) -> list[str]:
    """Return the nodes that a frame from host `start` passes on its way to `end`."""
    path = [start, topology.ports(start)[1]]
    while path[-1] != end:
        assert len(path) <= len(topology.switches) + 2, f"in circles: {path}"
        path.append(topology.ports(path[-1])[topology.forwarding(path[-1])[topology.mac(end)]])
    return path


@given(topologies())
def test_every_host_is_reached_from_every_other(topology: Topology) -> None:
    for start in topology.hosts:
        for end in [*topology.hosts, *topology.switches]:
            if start != end:
                path = walk(topology, start, end)
                assert set(path[1:-1]) <= set(topology.switches), "only switches pass frames on"


@given(topologies())
def test_a_flooded_frame_reaches_every_node_once(topology: Topology) -> None:
    for start in topology.hosts:
        seen: Counter[str] = Counter()
        waiting = [(topology.ports(start)[1], start)]
        while waiting:
            node, came_from = waiting.pop()
            seen[node] += 1
            assert seen[node] == 1, f"{node} has it twice"
            if node in topology.switches:
                there = topology.ports(node)
                waiting += [(there[port], node) for port in topology.flood_ports(node) if there[port] != came_from]
        assert set(seen) == {*topology.hosts, *topology.switches} - {start}


@given(topologies())
def test_a_tree_brings_every_worker_to_its_root_once(topology: Topology) -> None:
    for root in topology.roots:
        tree = topology.tree(root)
        assert tree.switches[-1] == root
        counted: Counter[str] = Counter()
        for switch in tree.switches:
            assert switch == root or tree.parents[switch] in topology.ports(switch).values()
            assert tree.children(switch) or switch == root, f"{switch} has no children"
            counted.update(tree.children(switch))
        assert counted == Counter({*topology.workers, *tree.switches} - {root})
        for at, switch in enumerate(tree.switches[:-1]):
            assert tree.parents[switch] in tree.switches[at + 1 :], "every switch is before its parent"


@given(topologies())
def test_addresses_differ(topology: Topology) -> None:
    nodes = [*topology.hosts, *topology.switches]
    assert len({topology.ip(node) for node in nodes} | {topology.mac(node) for node in nodes}) == 2 * len(nodes)
    ends = [topology.interface(node, other) for node in nodes for other in topology.ports(node).values()]
    assert len(set(ends)) == len(ends) == 2 * len(topology.links)
    assert max(map(len, ends)) <= 15


def test_the_two_racks() -> None:
    topology = two_racks.build(8)
    way = topology.tree("spine1")
    assert way.switches == ("leaf1", "leaf2", "spine1")
    assert way.children("leaf2") == ("h5", "h6", "h7", "h8")
    assert way.children("spine1") == ("leaf1", "leaf2")
    assert topology.ip("h8") == "10.0.0.8"
    assert topology.mac("spine1") == "02:00:0a:00:ff:03"
    assert topology.interface("leaf1", "spine1") == "leaf1-eth5"
    assert walk(topology, "h1", "h8") == ["h1", "leaf1", "spine1", "leaf2", "h8"]


def test_spines_share_the_traffic() -> None:
    topology = leaf_spine.build(8, leaves=2, spines=2)
    spines = Counter(walk(topology, "h1", end)[2] for end in ("h5", "h6", "h7", "h8"))
    assert spines == {"spine1": 2, "spine2": 2}
    assert [topology.tree(root).parents["leaf1"] for root in topology.roots] == ["spine1", "spine2"]


def test_leaves_are_in_the_tree_of_every_spine() -> None:
    topology = clos.build(8, leaves=4, spines=2)
    assert set(topology.aggregating) == set(topology.switches)
    assert topology.aggregating.index("leaf4") < topology.aggregating.index("spine1")
    made = tomllib.loads(settings(topology, lambda switch: f"{switch}:1"))
    uplinks = {one["name"]: one.get("uplink", []) for one in made["switches"]}
    assert uplinks["leaf2"] == [{"port": 3, "to": "spine1"}, {"port": 4, "to": "spine2"}]
    assert uplinks["spine1"] == []


def test_roots_of_trees_are_side_by_side() -> None:
    links = (Link("h1", "s1"), Link("s1", "s2"))
    with pytest.raises(ValueError, match="the root s1 is below s2: accepted are roots side by side"):
        Topology("line", ("h1",), ("s1", "s2"), links, ("h1",), ("s1", "s2"), hierarchical=True)


def test_a_tree_of_depth_and_fan_out() -> None:
    topology = tree.build(9, depth=3, fan_out=2)
    assert len(topology.switches) == 7
    way = topology.tree("s1")
    sizes = sorted(len(way.children(switch)) for switch in ("s4", "s5", "s6", "s7"))
    assert sizes == [2, 2, 2, 3]
    assert tree.build(3, depth=1).switches == ("s1",)


def test_topologies_know_nothing_of_what_runs_them() -> None:
    code = "import sys, p4reduce_topos.topologies.catalogue; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert not {"mininet", "typer", "p4reduce_bench"} & set(said.stdout.split())


@pytest.mark.parametrize("topology", DEFAULTS, ids=lambda topology: topology.name)
def test_the_names_of_the_catalogue(topology: Topology) -> None:
    assert TOPOLOGIES[topology.name].build() == topology


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hosts": ("h1", "h1")}, "h1 is there twice"),
        ({"hosts": ("h1", "h2", "h3")}, "host h3 must have one link"),
        ({"links": (Link("h1", "s1"), Link("h2", "s9"))}, "'s9', which is not a node"),
        ({"links": (Link("h1", "s1"), Link("h2", "s1"), Link("s1", "h1"))}, "not s1 to h1 again"),
        ({"links": (Link("h1", "h2"),)}, "to a switch"),
        ({"switches": ("s1", "s2")}, "no path from s1 to s2"),
        ({"workers": ()}, "there must be a worker"),
        ({"workers": ("h1", "h1")}, "none twice"),
        ({"roots": ("h1",)}, "root h1 is not among s1"),
    ],
)
def test_what_is_no_topology_is_refused(change: dict[str, object], named: str) -> None:
    good = {"name": "bad", "hosts": ("h1", "h2"), "switches": ("s1",), "links": star.build(2).links,
            "workers": ("h1", "h2"), "roots": ("s1",)}  # fmt: skip
    Topology(**good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=named):
        Topology(**{**good, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "h$(id)", "rank 1", "dc/h1", "h1:0", "-h1", "", ".", "..",
        "h\n1", "h;id", "h`id`", "h'1", "h%d", "hé", "²", "*", 7,
    ],
)  # fmt: skip
@pytest.mark.parametrize("of_a_switch", [False, True])
def test_names_that_are_no_words_of_linux_are_refused(name: object, of_a_switch: bool) -> None:
    host, switch = ("h1", name) if of_a_switch else (name, "s1")
    with pytest.raises(ValueError, match="accepted") as refused:
        Topology("bad", (host,), (switch,), (Link(host, switch),), (host,), (switch,))  # type: ignore[arg-type]
    assert repr(name) in str(refused.value)


def star_of(switch: str, hosts: int) -> Topology:
    names = tuple(f"h{number}" for number in range(hosts))
    return Topology("star", names, (switch,), tuple(Link(name, switch) for name in names), names[:1], (switch,))


@pytest.mark.parametrize(
    ("switch", "hosts"), [("s" * 10, 9), ("s" * 9, 99), ("s" * 8, 100), ("0", 1), ("A.b_c-1", 1), ("control", 1)]
)
def test_names_that_linux_takes(switch: str, hosts: int) -> None:
    made = star_of(switch, hosts)
    assert max(len(made.interface(switch, host)) for host in made.hosts) <= 15


@pytest.mark.parametrize(
    ("switch", "hosts", "named"),
    [
        ("s" * 11, 9, "'sssssssssss' has 11 characters: up to 10 are accepted for a node with 9 links"),
        ("s" * 9, 100, "'sssssssss' has 9 characters: up to 8 are accepted for a node with 100 links"),
        ("ctl", 1, "'ctl' is not accepted"),  # "ctl-eth1" is the link for control of a host "eth1"
    ],
)
def test_names_whose_interfaces_linux_does_not_take_are_refused(switch: str, hosts: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        star_of(switch, hosts)


@pytest.mark.parametrize(
    "change", [{"rate": 5}, {"rate": -1}, {"delay": -0.1}, {"delay": 11}, {"queue": 100}, {"loss": 1.5}]
)
def test_what_no_wire_does_is_refused(change: dict[str, float]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}=.* accepted"):
        LinkProperties(**change)  # type: ignore[arg-type]


def test_more_leaves_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="workers=1"):
        two_racks.build(1)
