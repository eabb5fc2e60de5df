# SPDX-License-Identifier: Apache-2.0
"""Published allreduces on the simulator's links: their volumes, their completeness, and their times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.transport.frames import HEADERS
from p4reduce_simulator import Host, Link, Network, Workload, clos, star
from p4reduce_simulator.network import ETHERNET_OVERHEAD
from p4reduce_simulator.peers.algorithms import SYSTEMS, omnireduce
from p4reduce_simulator.peers.comparison import KNOWN, compare
from p4reduce_simulator.peers.player import MTU, play
from p4reduce_simulator.peers.schedule import Schedule
from p4reduce_simulator.peers.support import Support

BY_DOUBLING = ("halving-doubling", "sparcml", "gtopk")
LOSSY = ("gtopk", "oktopk-k")  # which do not sum all elements; their messages still depend on all ranks
SPARSE = Workload(numel=1 << 14, density=0.05, pattern="elements")


def known(schedule: Schedule) -> list[list[set[int]]]:
    """Return, for each rank and part, the ranks whose values it has seen, by the messages' dependencies alone."""
    carried: list[dict[int, set[int]]] = []
    ends: list[list[set[int]]] = [[{rank} for _ in range(schedule.parts)] for rank in range(schedule.ranks)]
    for message, (source, destination, _) in enumerate(schedule):
        own = {source} if source < schedule.ranks else set()
        waits = schedule.waits(message)
        assert all(wait < message and schedule.destinations[wait] == source for wait in waits)
        carried.append({
            part: own.union(*(carried[wait].get(part, set()) for wait in waits)) for part in schedule.parts_of(message)
        })  # fmt: skip
        if destination < schedule.ranks:
            for part, ranks in carried[-1].items():
                ends[destination][part] |= ranks
    return ends


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(set(SYSTEMS) - {"omnireduce"})), st.sampled_from([1, 2, 3, 4, 7, 8, 16]))
def test_every_rank_ends_with_the_values_of_all(system: str, ranks: int) -> None:
    support = Support(SPARSE, ranks)
    if system in BY_DOUBLING and ranks & (ranks - 1):
        with pytest.raises(ValueError, match=f"{ranks} ranks: accepted are powers of two"):
            SYSTEMS[system](support)
        return
    everyone = set(range(ranks))
    assert all(part == everyone for parts in known(SYSTEMS[system](support)) for part in parts)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 200_000), st.sampled_from([0.0, 0.02, 0.5, 1.0]), st.integers(1, 9))
def test_omnireduce_sums_the_blocks_that_are_not_zero(ranks: int, numel: int, density: float, servers: int) -> None:
    support = Support(Workload(numel=numel, density=density), ranks)
    ends = known(omnireduce(support, servers))
    masks = support.blocks(256)
    for block in range(len(masks[0])):
        wanted = {rank for rank in range(ranks) if masks[rank][block]}
        assert all(ends[rank][block] >= wanted for rank in range(ranks))


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_volumes_are_the_published_ones(ranks: int) -> None:
    """For each rank, up to the rounding of messages to whole bytes, and of parts to whole elements."""
    support = Support(SPARSE, ranks)
    numel, most = support.numel, (ranks - 1) / ranks
    nonzero, union = support.nonzero, support.union(ranks)
    doubling = sum(min(8 * support.union(1 << step), 4 * numel) for step in range(ranks.bit_length() - 1))
    published = {
        "ring": 2 * 4 * numel * most,
        "halving-doubling": 2 * 4 * numel * most,
        "parameter-server": 4 * numel,
        "agsparse": 8 * nonzero * (ranks - 1),
        "sparcml": doubling,
        "sparcml-split": 8 * (nonzero + union) * most,
        "sparcml-dense": (8 * nonzero + 4 * numel) * most,
        "oktopk": 8 * (nonzero + union) * most,
        "oktopk-k": 16 * nonzero * most,
        "zen": (8 * nonzero + numel / 8 + 4 * union) * most,
    }
    assert set(published) == set(SYSTEMS) - {"gtopk", "omnireduce"}
    for system, volume in published.items():
        schedule = SYSTEMS[system](support)
        for rank in range(ranks):
            assert schedule.sent(rank) == pytest.approx(volume, abs=2 * ranks, rel=1e-3), system
            assert schedule.received(rank) == pytest.approx(volume, abs=2 * ranks, rel=1e-3), system
    steps = ranks.bit_length() - 1
    gtopk = SYSTEMS["gtopk"](support)
    assert sum(gtopk.sizes) == pytest.approx(2 * (ranks - 1) * 8 * nonzero, abs=ranks)
    assert gtopk.sent(0) == gtopk.received(0) == pytest.approx(8 * nonzero * steps, abs=steps)
    assert SYSTEMS["oktopk-k"](support).sent(0) <= 6 * 4 * nonzero * most  # the paper's bound: 6k(P - 1)/P words


def test_volumes_of_doubling_are_within_sparcmls_bounds() -> None:
    for overlap, words in (("all", 2 * 3), ("none", 2 * 7)):  # 2k log2 P and 2k(P - 1)
        support = Support(Workload(1 << 14, 0.05, "elements", overlap), 8)
        sent = SYSTEMS["sparcml"](support).sent(0)
        assert sent == pytest.approx(4 * words * support.nonzero, rel=0.02)


def test_omnireduce_sends_own_blocks_and_receives_those_of_the_sum() -> None:
    support = Support(Workload(numel=1 << 18, density=0.1), 4)
    masks = np.array(support.blocks(256))
    masks[:, :256] = True
    schedule = omnireduce(support)
    for rank in range(4):
        assert schedule.sent(rank) == masks[rank].sum() * (1024 + 4)
        assert schedule.received(rank) == masks.any(0).sum() * (1024 + 4)


def wire_time(size: float, link: Link) -> tuple[float, float]:
    """Return the time of a message on a link, and that of its longest packet."""
    payload = MTU - 28
    packets = max(1, -(-int(size) // payload))
    overhead = HEADERS.size + ETHERNET_OVERHEAD
    return 8 * (size + packets * overhead) / link.rate, 8 * (min(size, payload) + overhead) / link.rate


def step_time(size: float, network: Network) -> float:
    """Return alpha + beta * size: of a message through one switch, if no other is in its way."""
    whole, longest = wire_time(size, network.edge)
    return whole + longest + 2 * network.edge.delay + network.switch.delay


@pytest.mark.parametrize("link", [Link(), Link(rate=10**10, delay=20e-6)])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_times_on_an_uncontended_star_are_those_of_the_model(ranks: int, link: Link) -> None:
    network, numel = star(ranks, link), 1 << 16
    support = Support(Workload(numel=numel), ranks)
    ring = 2 * (ranks - 1) * step_time(4 * numel / ranks, network)
    assert play(network, SYSTEMS["ring"](support)).time == pytest.approx(ring, rel=1e-9)
    halves = [4 * numel / (1 << step) for step in range(1, ranks.bit_length())]
    doubling = 2 * sum(step_time(half, network) for half in halves)
    assert play(network, SYSTEMS["halving-doubling"](support)).time == pytest.approx(doubling, rel=1e-9)


def test_a_link_that_two_messages_need_takes_one_after_the_other() -> None:
    network = star(3)
    one, two = Schedule(3), Schedule(3)
    one.send(0, 2, 10_000)
    for source in (0, 1):
        two.send(source, 2, 10_000)
    times = [play(network, schedule).time for schedule in (one, two)]
    assert times[1] - times[0] == pytest.approx(wire_time(10_000, network.edge)[0], rel=1e-9)


def test_a_hosts_processor_takes_its_time_for_each_packet() -> None:
    costly = Network("star", ("switch",), ("switch",) * 2, edge=Link(rate=0, delay=0), host=Host(3e-6, 0, 1e-6, 0))
    schedule = Schedule(2)
    schedule.send(0, 1, 100 * (MTU - 28))
    assert play(costly, schedule).time == pytest.approx(1e-6 + costly.switch.delay + 100 * 3e-6, rel=1e-9)


def test_pairs_are_dealt_over_the_spines() -> None:
    network = clos(16, 4, 4)
    played = play(network, SYSTEMS["zen"](Support(SPARSE, 16)))
    up = [
        link.bytes for link in played.links if link.source.startswith("leaf") and link.destination.startswith("spine")
    ]
    assert max(up) < 1.1 * min(up)
    servers = play(network, SYSTEMS["parameter-server"](Support(SPARSE, 16)))
    assert {link.source for link in servers.links} >= {f"server{server}" for server in range(16)}


def test_equal_schedules_have_equal_runs() -> None:
    schedule = SYSTEMS["oktopk"](Support(SPARSE, 8))
    first, second = (play(clos(8, 2, 2), schedule) for _ in range(2))
    assert first.digest == second.digest
    assert first.rank_times == second.rank_times


def test_a_run_ends_at_a_limit() -> None:
    schedule = SYSTEMS["ring"](Support(SPARSE, 4))
    with pytest.raises(TimeoutError, match=r"\d+ of 24 messages have not arrived at .* s"):
        play(star(4), schedule, until=5e-6)
    with pytest.raises(ValueError, match="a schedule for 4 ranks, a network with 5"):
        play(star(5), schedule)


def test_256_ranks() -> None:
    network = clos(256, 16, 16)
    support = Support(Workload(numel=1 << 16, density=0.01, pattern="elements"), 256)
    for system in ("ring", "halving-doubling", "oktopk", "zen", "sparcml"):
        played = play(network, SYSTEMS[system](support))
        assert max(played.rank_times) == played.time > 0


def test_systems_are_compared_on_one_network() -> None:
    found = compare(star(4), Workload(numel=1 << 16, density=0.1), KNOWN)
    assert [run.system for run in found.runs] == list(KNOWN)
    assert found.time("p4reduce") < found.time("switchml") < found.time("ring")
    ring, switchml = (next(run for run in found.runs if run.system == system) for system in ("ring", "switchml"))
    assert ring.sent == pytest.approx(1.045 * 2 * 3 / 4 * 4 * found.numel, rel=0.01)
    assert switchml.sent == pytest.approx(1.1 * 4 * found.numel, rel=0.05)
    with pytest.raises(ValueError, match="systems are compared by one allreduce"):
        compare(star(4), Workload(operations=2), ["ring"])
    with pytest.raises(ValueError, match="system nccl: accepted are p4reduce, switchml, p4reduce-elements, ring"):
        compare(star(4), Workload(), ["nccl"])
