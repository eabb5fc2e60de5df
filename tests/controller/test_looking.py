# SPDX-License-Identifier: Apache-2.0
"""Views of a job's slot halves: the workers that several switches have counted there."""

from __future__ import annotations

import asyncio

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.fabric.slots import look
from p4reduce_controller.jobs.effects import Install, Tell
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink
from tests.support.controller.fake_switch import FakeSwitch


async def counted(
    trees: Trees, at: dict[int, list[int]], halves: list[dict[int, tuple[int, int]]], half: int
) -> object:
    """Return the controller's view of a half. at: the switches that hear each rank. halves: those of each switch."""
    switches = [FakeSwitch(16, number) for number in range(len(trees.names))]
    for switch, held in zip(switches, halves, strict=True):
        switch._connected.set()
        switch.halves = held
    known = Switches(Layout(4, 64, 16), [switch.address for switch in switches], trees, default_slots=4)
    known.children = {
        (child, up.parent): Heard(10 + child, switches[child].address, 0, 0, child, 0)
        for child, up in trees.uplinks.items()
    }
    jobs = Jobs(known)
    for rank in at:
        jobs.join(rank, pb.Join(job="job", rank=rank, world_size=len(at)), 0.0)
    assigned = {one.session: one.message.assigned for one in jobs.take_effects() if isinstance(one, Tell)}
    for rank, places in at.items():
        told = assigned[rank]
        for switch in places:
            sender = Endpoint(f"02:00:00:00:00:{rank:02x}", f"10.0.0.{rank}", 5000)
            jobs.on_hello(switch, Heard(1 + rank, sender, told.job, told.generation, rank, told.hello_nonce))
    (install,) = jobs.take_effects()
    assert isinstance(install, Install)
    return await look(install.job, half, dict(enumerate(switches)))


def test_the_latest_round_of_the_leaves() -> None:
    """Bits are places at a leaf; the spine's are of leaves."""
    trees = Trees(["spine", "leaf1", "leaf2"], {1: Uplink(9, 0), 2: Uplink(9, 0)})
    halves = [{3: (99, 0b11)}, {3: (2**32 - 1, 0b11)}, {3: (1, 0b10)}]
    at = {0: [1], 1: [2], 2: [1], 3: [2]}
    assert asyncio.run(counted(trees, at, halves, 3)) == pb.Counted(half=3, seq=1, ranks=[3])


def test_ranks_of_several_leaves_in_one_round() -> None:
    trees = Trees(["spine", "leaf1", "leaf2"], {1: Uplink(9, 0), 2: Uplink(9, 0)})
    halves = [{0: (8, 0)}, {0: (8, 0b01)}, {0: (8, 0b11)}]
    at = {0: [1], 1: [2], 2: [1], 3: [2]}
    assert asyncio.run(counted(trees, at, halves, 0)) == pb.Counted(half=0, seq=8, ranks=[0, 1, 3])


def test_the_aggregator_that_the_slot_lives_at() -> None:
    """Slot 3 of the job is slot 1 of the second."""
    trees = Trees(["a", "b"], {})
    halves: list[dict[int, tuple[int, int]]] = [{}, {3: (5, 0b10)}]
    assert asyncio.run(counted(trees, {0: [0, 1], 1: [0, 1]}, halves, 7)) == pb.Counted(half=7, seq=5, ranks=[1])
