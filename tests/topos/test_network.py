# SPDX-License-Identifier: Apache-2.0
"""Reductions and other traffic on networks in Mininet."""

from __future__ import annotations

import hashlib
import json
import shutil
import time

import pytest

from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_topos.experiments.measurement import SYSTEMS, measure
from p4reduce_topos.faults.rank import sums
from p4reduce_topos.faults.ranks import Ranks
from p4reduce_topos.model import LinkProperties, Topology
from p4reduce_topos.topologies import bottleneck, clos, leaf_spine, star, tree, two_racks
from tests.support.mininet import Start, targets

pytestmark = [pytest.mark.mininet, pytest.mark.root]

CALLS = 5
SHAPE = (20_000, 0.5, 64)  # elements, density, block size: as `rank` has them by default
SUMS = hashlib.sha256(b"".join(sums(4, call, *SHAPE).tobytes() for call in range(CALLS))).hexdigest()


@pytest.mark.parametrize("loss", [pytest.param(0.0, marks=pytest.mark.slow), 0.02])
@pytest.mark.parametrize(
    "topology",
    [
        two_racks.build(4),
        *(
            pytest.param(topology, marks=pytest.mark.slow)
            for topology in (
                star.build(4),
                leaf_spine.build(4),
                clos.build(4, spines=3),
                tree.build(4, depth=3, fan_out=2),
                bottleneck.build(4),
            )
        ),
    ],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("target", targets())
def test_every_network_gives_the_bits_of_the_reference(
    start: Start, target: str, topology: Topology, loss: float
) -> None:
    """So all ranks have the same bits, which are those on one switch."""
    with (
        start(topology, target, controller_options=["--drop-rate", str(loss)] if loss else []) as network,
        Ranks(network, "--calls", str(CALLS)) as ranks,
    ):
        ends = ranks.wait_ends(120.0)
    assert {end.get("digest") for end in ends.values()} == {SUMS}, ends
    if loss:
        assert sum(end["retransmissions"] for end in ends.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", targets())
def test_a_spine_link_carries_no_more_than_one_worker(start: Start, target: str) -> None:
    """This holds each way, whatever the rack's workers send and receive. 1.05 allows for control messages."""
    case = Case(8, 1 << 18, "float32", 1.0, "random", "block")
    setup = Setup(target=target, slots=16, threads=1, repeat=3, warm_up=0, timeout=60)
    with start(two_racks.build(8), target) as network:
        measured = measure(network, "p4reduce", case, setup)
    assert measured.row.wrong == 0
    carried = measured.carried
    for leaf, first in (("leaf1", "h1"), ("leaf2", "h5")):
        assert carried[f"{leaf}>spine1"] <= 1.05 * carried[f"{first}>{leaf}"], carried
        assert carried[f"spine1>{leaf}"] <= 1.05 * carried[f"{leaf}>{first}"], carried


@pytest.mark.slow
@pytest.mark.parametrize("target", targets())
def test_a_core_link_carries_its_share_of_one_worker(start: Start, target: str) -> None:
    """This holds each way, with 16 slots at each of two spines. 1.2 allows for packets that are sent again."""
    case = Case(8, 1 << 18, "float32", 1.0, "random", "block")
    setup = Setup(target=target, slots=32, threads=1, repeat=3, warm_up=0, timeout=60)
    with start(clos.build(8, leaves=4, spines=2), target) as network:
        measured = measure(network, "p4reduce", case, setup)
        spines = [switch["outcomes"]["completed"] for switch in network.status()["switches"] if not switch["parents"]]
    assert measured.row.wrong == 0
    assert spines[0] == pytest.approx(spines[1], rel=0.1)
    carried = measured.carried
    for number in range(1, 5):
        leaf, host = f"leaf{number}", f"h{2 * number - 1}"
        for spine in ("spine1", "spine2"):
            assert carried[f"{leaf}>{spine}"] <= 0.5 * 1.2 * carried[f"{host}>{leaf}"], carried
            assert carried[f"{spine}>{leaf}"] <= 0.5 * 1.2 * carried[f"{leaf}>{host}"], carried


@pytest.mark.slow
@pytest.mark.parametrize("topology", [star.build(2, others=1), leaf_spine.build(4)], ids=lambda one: one.name)
def test_other_traffic_crosses_the_same_switches(start: Start, topology: Topology) -> None:
    for tool in ("ping", "iperf3"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} on PATH")
    first, last = topology.hosts[0], topology.hosts[-1]
    with start(topology) as network:
        for host in (*topology.hosts[1:], *topology.switches):
            said = network.mininet[first].cmd("ping", "-c", "1", "-W", "5", topology.ip(host))
            assert " 1 received" in said, f"{host}: {said}"
        network.mininet[last].cmd("iperf3", "-s", "-1", "-D")
        deadline = time.monotonic() + 20
        while True:
            said = json.loads(network.mininet[first].cmd("iperf3", "-c", topology.ip(last), "-n", "20M", "-J"))
            if "error" not in said or time.monotonic() > deadline:  # the server may not listen yet
                break
        assert "error" not in said, said
        assert said["end"]["sum_received"]["bytes"] > 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_runs_on_a_network(start: Start, system: str) -> None:
    case = Case(3, 10_000, "float32", 0.5, "random", "block")
    setup = Setup(target="native", slots=16, threads=1, repeat=2, warm_up=1, timeout=60)
    with start(star.build(3, others=1)) as network:
        measured = measure(network, system, case, setup)
    assert measured.row.wrong == 0
    assert measured.row.median_s is not None


@pytest.mark.serial
@pytest.mark.slow
def test_links_have_their_rate_and_delay(start: Start) -> None:
    """1 MB at 20 Mbit/s takes 0.4 s at the least, and a round trip over two links of 10 ms 40 ms."""
    case = Case(2, 1 << 18, "float32", 1.0, "all", "block")
    setup = Setup(target="native", slots=64, threads=1, repeat=1, warm_up=0, timeout=60)
    with start(star.build(2, LinkProperties(rate=20_000_000, delay=0.01))) as network:
        measured = measure(network, "p4reduce", case, setup)
        said = network.mininet["h1"].cmd("ping", "-c", "3", "-i", "0.2", "10.0.0.2")
    assert measured.row.wrong == 0
    assert measured.row.limit_s is not None
    assert measured.row.median_s is not None
    assert measured.row.median_s >= measured.row.limit_s > 0.4
    least = float(said.rpartition(" = ")[2].partition("/")[0])
    assert 40 <= least < 80, said


@pytest.mark.slow
def test_a_host_knows_the_switches_when_its_link_is_up_again(start: Start) -> None:
    """A spine's own answer would leave by another leaf."""
    with start(leaf_spine.build(2)) as network:
        known = network.mininet["h2"].cmd("ip -br neighbour show nud permanent")
        assert known.count("h2-eth1") == 4
        for up in (False, True):
            network.set_link("h2", "leaf2", up=up)
        assert network.mininet["h2"].cmd("ip -br neighbour show nud permanent") == known
        network.mininet.configLinkStatus("h2", "leaf1", "up")  # which is no link
        network.mininet.configLinkStatus("h2", "nobody", "up")
