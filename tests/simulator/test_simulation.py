# SPDX-License-Identifier: Apache-2.0
"""The simulator: exact sums, runs that repeat to the packet, and traffic that the protocol promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from p4reduce.commands.cli import app
from p4reduce.protocol.constants import Outcome
from p4reduce.tensors.indices import Code
from p4reduce_simulator import Cable, Host, Link, Network, Result, Switch, Workload, clos, simulate, star
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.simulation import Simulation
from p4reduce_simulator.workload import OVERLAPS, PATTERNS

SMALL = Workload(numel=1 << 14)
SLOW = Link(rate=10**9, delay=5e-6)


def test_the_sums_are_exact_and_no_packet_is_lost() -> None:
    result = simulate(star(4), SMALL)
    assert result.exact
    assert result.strays == 0
    assert result.totals["operations"] == 4
    assert not any(link.dropped or link.lost for link in result.links)
    assert set(result.outcomes["switch"]) == {"STARTED", "ADDED", "COMPLETED"}


NETWORKS = st.one_of(
    st.builds(star, st.integers(1, 6)),
    st.builds(
        lambda leaves, each, spines, pods: clos(leaves * each, leaves, spines, pods and leaves // 2),
        st.sampled_from([2, 4]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.booleans(),
    ),
)
LINKS = st.builds(
    Link,
    rate=st.sampled_from([0, 10**8, 10**10, 4 * 10**11]),
    delay=st.sampled_from([0.0, 1e-6, 1e-3]),
    queue=st.sampled_from([0, 5_000, 1_000_000]),
    mark=st.sampled_from([0, 3_000]),
    loss=st.sampled_from([0.0, 0.01, 0.2]),
)
HOSTS = st.builds(Host, receive=st.sampled_from([0.0, 1e-6]), send=st.sampled_from([0.0, 5e-7]))
WORKLOADS = st.builds(
    Workload,
    numel=st.integers(1, 20_000),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    pattern=st.sampled_from(PATTERNS),
    overlap=st.sampled_from([*OVERLAPS, 0.5]),
    dense=st.sampled_from([0.0, 0.1]),
    warm_up_numel=st.sampled_from([0, 1000]),
    dtype=st.sampled_from(["float32", "int32"]),
    operations=st.integers(1, 3),
    late=st.sampled_from([0.0, 0.05]),
    jitter=st.sampled_from([0.0, 1e-4]),
    skew=st.sampled_from([0.0, 100.0]),
    drift=st.sampled_from([0.0, 1e-4]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(NETWORKS, LINKS, HOSTS, WORKLOADS, st.integers(0, 3))
def test_every_run_ends_with_exact_sums_and_repeats(
    network: Network, link: Link, host: Host, workload: Workload, seed: int
) -> None:
    """Whatever is lost, dropped, late or slow. A second run has the same packets at the same times."""
    shaped = Network(
        network.name, network.switches, network.ranks, network.cables, network.roots, link, link, host, Switch(1e-6)
    )
    found = [simulate(shaped, workload, seed=seed, slots=16) for _ in range(2)]
    assert all(result.exact for result in found)
    assert found[0].digest == found[1].digest
    assert found[0].links == found[1].links
    assert found[0].rank_times == found[1].rank_times


def test_another_seed_gives_another_run() -> None:
    lossy = star(4, Link(loss=0.05))
    assert len({simulate(lossy, SMALL, seed=seed).digest for seed in range(4)}) == 4


def test_a_dense_tensor_takes_the_time_of_its_bytes() -> None:
    """The link of each rank is busy nearly all the time, in both directions."""
    workload = Workload(numel=1 << 18)
    result = simulate(star(4, SLOW), workload, slots=128)
    packets = workload.numel // 256 + 128  # of four blocks, and the announcements of the slots
    least = 8 * (4 * workload.numel + packets * (24 + 42 + 18 + 16)) / 1e9
    assert least < result.times[0] < 1.03 * least
    assert all(link.utilisation > 0.97 for link in result.links)


def test_a_leaf_has_the_traffic_of_one_worker() -> None:
    """However many ranks it has; and each spine of a Clos has its share."""
    tree = simulate(clos(16, 4, 1), SMALL)
    worker = max(link.bytes for link in tree.links if link.source.startswith("rank"))
    assert {link.bytes for link in tree.between_switches()} == {worker}
    two = simulate(clos(16, 4, 2), SMALL)
    assert all(link.bytes == pytest.approx(worker / 2, rel=0.01) for link in two.between_switches())
    assert two.exact
    assert set(two.outcomes) == {"spine0", "spine1", "leaf0", "leaf1", "leaf2", "leaf3"}
    for leaf in range(4):
        assert two.outcomes[f"leaf{leaf}"]["SENT_UP"] == two.outcomes[f"leaf{leaf}"]["STORED"]


def test_a_full_queue_drops_and_a_long_one_marks() -> None:
    hasty = Network("slow-core", ("spine", "leaf"), ("leaf", "leaf"), (Cable("spine", "leaf"),), ("spine",), Link(),
                    Link(rate=10**9, queue=20_000, mark=10_000))  # fmt: skip
    result = simulate(hasty, Workload(numel=1 << 16))
    up = next(link for link in result.links if (link.source, link.destination) == ("leaf", "spine"))
    assert up.dropped > 0
    assert up.marked > 0
    assert up.longest_wait <= 20_000 * 8 / 1e9
    assert result.totals["retransmissions"] > 0
    assert result.exact


def test_with_marks_no_packet_is_lost_where_queues_overflow_without() -> None:
    """Below a spine 200 us away, the slots of a job are twice what a queue has room for."""

    def run(mark: int) -> Result:
        core = Link(rate=10**9, delay=200e-6, queue=300_000, mark=mark)
        network = clos(16, 4, 1, edge=Link(rate=10**10, delay=1e-6), core=core)
        return simulate(network, Workload(numel=1 << 19, operations=4), slots=512)

    unmarked, marked = run(0), run(30_000)
    assert unmarked.exact
    assert marked.exact
    assert sum(link.dropped for link in unmarked.links) > 1000
    assert sum(link.dropped for link in marked.links) == 0
    assert unmarked.totals["retransmissions"] > 1000
    assert marked.totals["retransmissions"] == 0
    assert unmarked.totals["marks"] == 0
    assert marked.totals["marks"] >= marked.totals["slowdowns"] >= 16
    assert marked.times[-1] < 1.5 * unmarked.times[-1]


def test_losses_are_counted_on_their_link() -> None:
    result = simulate(star(4, Link(loss=0.1)), Workload(numel=1 << 17))
    for link in result.links:
        assert 0.05 < link.lost / link.packets < 0.15
    assert sum(result.outcomes["switch"].values()) > 0


def test_a_host_with_costs_is_the_limit() -> None:
    """Each packet takes a rank 10 us to receive and 10 us to send: 20 us a round, if links are fast."""
    workload = Workload(numel=1 << 16)
    result = simulate(star(2, Link(rate=0)), workload)
    slow = Network("star", ("switch",), ("switch",) * 2, edge=Link(rate=0), host=Host(10e-6, 0, 10e-6, 0))
    slowed = simulate(slow, workload)
    packets = workload.numel // 256 + 64
    assert 0.999 * 20e-6 * packets < slowed.times[0] < 1.02 * 20e-6 * packets + 100e-6
    assert result.times[0] < slowed.times[0] / 10


def test_a_scan_takes_time_of_its_own() -> None:
    """A tensor of zeros is scanned once, whatever is sent. The rest of the run takes a few round trips."""
    workload = Workload(numel=1 << 20, density=0.0)
    scanning = Network("star", ("switch",), ("switch",) * 2, edge=Link(rate=0), host=Host(scan_byte=1e-9))
    free, slowed = simulate(star(2, Link(rate=0)), workload), simulate(scanning, workload)
    assert slowed.times[0] - free.times[0] == pytest.approx(4e-9 * workload.numel, rel=0.05)


def test_a_capture_has_every_packet(tmp_path: Path) -> None:
    """`p4reduce trace` reads it: it finds the rounds of the operation."""
    pcap, out = tmp_path / "all.pcap", tmp_path / "rounds.trace.json"
    result = simulate(star(3), SMALL, pcap=pcap)
    packets = sum(link.packets for link in result.links)
    assert pcap.stat().st_size == 24 + packets * (16 + 42 + 18 + 16)
    done = CliRunner().invoke(app, ["trace", "record", "--pcap", str(pcap), "--out", str(out), "1"])
    assert done.exit_code == 0, done.output
    assert f"of {packets // 6} rounds" in done.output
    assert "by 3 workers" in done.output


def test_a_late_rank_holds_up_all_of_them() -> None:
    result = simulate(star(4), Workload(numel=1 << 14, late=0.25))
    assert 0.25 < result.times[0] < 0.26
    assert result.rank_times[0][0] > 0.25 > 0.01 > result.rank_times[0][3]


def test_clocks_that_differ_change_no_time() -> None:
    plain, skewed = (simulate(star(4, SLOW), Workload(numel=1 << 16, skew=skew)) for skew in (0, 1e5))
    assert skewed.exact
    assert skewed.times[0] == pytest.approx(plain.times[0], rel=1e-3)


def test_a_run_that_does_not_end_names_a_rank() -> None:
    with pytest.raises(TimeoutError, match=r"rank 0: the operation has not ended at .* s"):
        simulate(star(2, Link(loss=1.0)), SMALL, until=0.5)


def test_what_is_recorded_is_what_was_sent() -> None:
    result = simulate(star(2, SLOW), Workload(numel=1 << 16, warm_up=0), record=1e-4)
    for link in result.links:
        assert sum(link.recorded) == link.bytes
        assert max(link.recorded) <= 1.12 * 1e-4 * 10**9 / 8


def test_a_record_begins_with_the_operations() -> None:
    """No intervals are kept of the warm-up and the pause, which take thousands of times as long as the operations."""
    result = simulate(star(2, SLOW), SMALL, record=1e-6)
    for link in result.links:
        assert sum(link.recorded) == link.bytes
        assert len(link.recorded) <= result.now / 1e-6 + 2
    with Simulation(star(2, SLOW)) as simulation:
        simulation.record(1e-6, start=0.2)
        for rank, values in enumerate(SMALL.tensors(2, 0)):
            simulation.submit(rank, values, 0.2)
        assert simulation.run() == 0
        assert len(simulation.recorded(0)) <= (simulation.now - 0.2) / 1e-6 + 2


def test_a_switch_that_is_software_needs_time_for_each_packet() -> None:
    network = Network("star", ("switch",), ("switch",) * 2, edge=Link(rate=0), switch=Switch(0, 3e-6, 1e-6))
    workload = Workload(numel=1 << 16, warm_up=0)
    with Simulation(network) as simulation:
        arrays = list(workload.tensors(2, 0))
        numbers = [simulation.submit(rank, array) for rank, array in enumerate(arrays)]
        assert simulation.run() == 0
        counts = simulation.outcomes("switch")
        spent = 3e-6 * (counts["STARTED"] + counts["ADDED"]) + 2e-6 * counts["COMPLETED"]
        assert max(simulation.operation(number)[1] for number in numbers) >= spent
        assert set(counts) <= {outcome.name for outcome in Outcome}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: star(33).trees, "33 ranks and switches are below switch: a switch adds up at most 32"),
        (lambda: clos(32, 1).trees, "32 ranks and switches are below leaf0: a switch adds up at most 31"),
        (lambda: Network("n", ("a",), ("b",)), "there is no switch b"),
        (lambda: Network("n", ("rank0",), ("rank0",)), "the switch rank0: accepted are names that do not begin with"),
        (lambda: Network("n", ("server0",), ("server0",)), "the switch server0: accepted are names that do not"),
        (lambda: Network("n", ("a", "b"), ("b",)).trees, "no cables lead from b to a"),
        (lambda: Link(loss=2), "loss of a link is 2: accepted are 0 to 1"),
        (lambda: Workload(density=-1), "density -1: accepted are 0 to 1"),
        (lambda: Workload(pattern="x"), "pattern x: accepted are blocks, elements, rows, runs, clustered"),
        (lambda: Workload(overlap=1.5), "overlap 1.5: accepted are random, all, none, and shares of 0 to 1"),
        (lambda: clos(4, 3, pods=2), "accepted are at least as many ranks as leaves"),
    ],
)
def test_errors_say_what_is_accepted(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    NETWORKS,
    LINKS,
    st.integers(1, 20_000),
    st.sampled_from([0.0, 0.0005, 0.05, 1.0]),
    st.sampled_from([0.0, 0.05]),
    st.integers(0, 3),
)
def test_sums_by_elements_are_exact_and_repeat(
    network: Network, link: Link, numel: int, density: float, late: float, seed: int
) -> None:
    """Whether the non-zeros travel with the header or not, and whatever is lost."""
    shaped = Network(network.name, network.switches, network.ranks, network.cables, network.roots, link, link)
    workload = Workload(numel, density, "elements", late=late, skew=100.0)
    found = [simulate(shaped, workload, seed=seed, slots=16, layout="elements") for _ in range(2)]
    assert all(result.exact for result in found)
    assert found[0].digest == found[1].digest
    assert len(network.ranks) == 1 or found[0].times[0] > 0.99 * late


def test_by_elements_each_rank_receives_indices_of_all_and_values_of_the_sum() -> None:
    workload = Workload(1 << 20, 0.01, "elements")
    support = Support(workload, 8)
    result = simulate(star(8), workload, layout="elements")
    words = 8 * Code(round(support.nonzero), workload.numel).words + support.union(8)
    received = [link.bytes for link in result.links if link.destination.startswith("rank")]
    assert max(received) == min(received) == pytest.approx(4 * words, rel=0.15)  # and headers
    indices = Host(index=70e-9)
    slow = simulate(Network("star", ("switch",), ("switch",) * 8, host=indices), workload, layout="elements")
    assert slow.times[0] - result.times[0] == pytest.approx(70e-9 * 8 * support.nonzero, rel=0.02)


def test_few_elements_travel_with_the_header(tmp_path: Path) -> None:
    """Then it is one operation. Floats of a file, whose sums are rounded, have the bits that the protocol specifies."""
    file = tmp_path / "tensors.npy"
    values = np.zeros((3, 50_000), np.float32)
    values[:, :40] = np.random.default_rng(1).standard_normal((3, 40))
    np.save(file, values)
    result = simulate(star(3), Workload(50_000, file=str(file), warm_up=0), layout="elements")
    assert result.right
    assert not result.exact
    assert result.totals["operations"] == 3
    np.save(file, np.tile(values[:, :40], 200))
    many = simulate(star(3), Workload(8000, file=str(file), warm_up=0), layout="elements")
    assert many.right
    assert many.totals["operations"] == 9
    values[0, 0], values[1, 1], values[2, 1] = np.nan, np.inf, -np.inf
    for some in (values, np.tile(values[:, :40], 200)):
        np.save(file, some)
        assert simulate(star(3), Workload(some.shape[1], file=str(file), warm_up=0), layout="elements").right
    with pytest.raises(ValueError, match="one allreduce by elements is simulated, and skips zeros"):
        simulate(star(3), Workload(100, operations=2), layout="elements")
