# SPDX-License-Identifier: Apache-2.0
"""Real workers on real data planes, two leaves and a spine, over a network that loses, repeats and reorders packets.

The workers and the network live in virtual time (tests/support/protocol/simulator.py). Each switch is a data plane
under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4reduce.protocol import Membership
from tests.support.dataplane import frames
from tests.support.dataplane.frames import AGGREGATION_PORT, PARENT, Host
from tests.support.dataplane.jobs import Job, Member
from tests.support.dataplane.switch import PLANES, SWITCH, Switch
from tests.support.dataplane.targets import Unavailable
from tests.support.protocol.scenarios import Call, call
from tests.support.protocol.simulator import Network, Simulation

SPINE = Host("02:00:00:00:97:01", "10.97.0.1", AGGREGATION_PORT)
HEADERS = 14 + 20 + 8
LEAVES = 3
TARGETS = [one for one in PLANES if one.values[0] != "native-eth"]  # which has native's slots, and other ports


@pytest.fixture(scope="module", params=TARGETS)
def switches(request: pytest.FixtureRequest) -> Iterator[list[Switch]]:
    """The spine, then the leaves."""
    with ExitStack() as running:
        try:
            made = [running.enter_context(Switch(request.param)) for _ in range(1 + LEAVES)]
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield made


class Node:
    """A switch in a job's tree, as the simulator wants one: datagrams of workers in, datagrams to workers out."""

    def __init__(self, switch: Switch, members: Membership, size: int, index: int | None = None) -> None:
        self.switch = switch
        switch.own_address()
        parent = Member(switch.ports[-1], SPINE) if index is not None else None
        self.job = Job(
            switch,
            size,
            number=members.job,
            generation=members.generation,
            slots=members.slots,
            first_seq=members.first_seq,
            parent=parent,
            index=index or 0,
        ).start()
        places = {worker: self.job.member(worker) for worker in [*range(size), *([PARENT] if parent else [])]}
        self.receivers = {(place.port, place.host): worker for worker, place in places.items()}

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        place = self.job.member(sender)
        outputs = self.switch.exchange((place.port, frames.udp_frame(place.host, SWITCH, payload)))
        assert not outputs.packet_ins
        receivers, answers = [], set()
        for port, data in outputs.ports.items():
            for frame in data:
                host = Host(frame[:6].hex(":"), ".".join(map(str, frame[30:34])), int.from_bytes(frame[36:38], "big"))
                receivers.append(self.receivers[port, host])
                answers.add(frame[HEADERS:])
        assert len(answers) <= 1, "copies of one answer are alike"
        return (tuple(sorted(receivers)), answers.pop()) if receivers else None


def simulate(
    switches: list[Switch], racks: list[list[int]], seed: int, network: Network, calls: list[Call], first_seq: int = 0
) -> Simulation:
    """Each call reduced over the tree, and compared with its reference bit for bit."""
    spine = switches[0]
    size = sum(map(len, racks))
    members = Membership(7, 1, racks[0][0], size, 2, spine.lanes, spine.block_size, first_seq, tuple(racks[0]))
    try:
        nodes = [Node(switches[1 + at], members, len(rack), at) for at, rack in enumerate(racks)]
        root = Node(spine, members, len(racks))
        simulation = Simulation(members, seed=seed, network=network, racks=racks, switch=root, leaves=nodes)
        simulation.reduce(list(zip(*(one.operations for one in calls), strict=True)), limit=10_000)
        for one in calls:
            one.check()
        simulation.drain()
        for one in calls:
            one.check()
        for switch in switches:
            assert not switch.counts().keys() & {"malformed", "forbidden", "not_admitted", "bad_slot", "mismatch"}
    finally:
        for switch in switches:
            switch.reset()
    return simulation


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Ranks dealt to leaves, in any order and unevenly."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=LEAVES))
    ranks = draw(st.permutations(range(sum(sizes))))
    ends = np.cumsum(sizes)
    return [list(ranks[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


NETWORKS = st.builds(
    Network,
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    duplicates=st.sampled_from([0.0, 0.1]),
    delay=st.sampled_from([0.0, 0.001, 0.02]),
    duplicate_delay=st.sampled_from([0.001, 1.0]),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    racks=trees(),
    network=NETWORKS,
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.0, 0.2, 1.0]),
    first_seq=st.sampled_from([0, 2**31 - 2, 2**32 - 2]),
)
def test_any_tree_any_schedule(
    switches: list[Switch], racks: list[list[int]], network: Network, seed: int, density: float, first_seq: int
) -> None:
    rng = np.random.default_rng(seed)
    block = switches[0].block_size
    calls = []
    for dtype in (np.float32, np.int32):
        size = int(rng.integers(0, 20 * block))
        arrays = [(1000 * rng.standard_normal(size)).astype(dtype) for _ in range(sum(map(len, racks)))]
        for array in arrays:
            array[np.repeat(rng.random(size // block + 1) >= density, block)[:size]] = 0
        calls.append(call(arrays, block))
    simulate(switches, racks, seed, network, calls, first_seq)


def test_more_workers_than_a_switch_has(switches: list[Switch]) -> None:
    """Three racks of twelve, and packets get lost on every link."""
    block = switches[0].block_size
    rng = np.random.default_rng(36)
    arrays = [rng.standard_normal(12 * block).astype(np.float32) for _ in range(36)]
    racks = [list(range(first, first + 12)) for first in (0, 12, 24)]
    simulate(switches, racks, 1, Network(loss=0.02, delay=0.001), [call(arrays, block)])


def test_between_racks_there_is_one_stream(switches: list[Switch]) -> None:
    """Two racks of four: a leaf's link to the spine carries at most 1.05 of one worker's bytes, each way."""
    block = switches[0].block_size
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(64 * block).astype(np.float32) for _ in range(8)]
    simulation = simulate(switches, [[0, 1, 2, 3], [4, 5, 6, 7]], 1, Network(), [call(arrays, block)])
    sent, received = (sum(HEADERS + len(one) for one in ways[0]) for ways in (simulation.sent, simulation.received))
    up, down = (sum(HEADERS + len(one) for one in way) / 2 for way in (simulation.up, simulation.down))
    assert 0.9 * sent <= up <= 1.05 * sent
    assert 0.9 * received <= down <= 1.05 * received
