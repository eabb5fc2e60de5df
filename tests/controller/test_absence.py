# SPDX-License-Identifier: Apache-2.0
"""Switches that are not there: who needs one is told so by name, and nobody else hears of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Assigned
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.service import status as status_module
from p4reduce_controller.service.run import running as a_controller
from p4reduce_controller.service.status import status_of
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.frames import build
from p4reduce_controller.switches.trees import Trees, Uplink
from tests.support.controller.bench import SWITCH, host
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import ADDRESSES, LEAF1, LEAF2, SPINE, TWO_LEAVES, TreeHarness
from tests.support.controller.proxy import Proxy
from tests.support.controller.ranks import Rank, hello_packet, ready
from tests.support.controller.running import Loop, Running, Starter
from tests.support.dataplane.targets import PORTS, TARGETS, Target
from tests.support.waiting import wait_until

GONE = "unreachable for 12 s: pulled"


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_a_rack_needs_no_other_switch_than_its_own() -> None:
    harness = TreeHarness()
    harness.absent = {SPINE: GONE, LEAF2: GONE}
    harness.ready_at(LEAF1, LEAF1)
    assert harness.placements.keys() == {LEAF1}


def test_a_rank_without_an_answer_is_told_of_switches_that_are_away() -> None:
    harness = TreeHarness()
    harness.ready_at(LEAF1, LEAF1)
    one = ("job", 0, 0)
    told = len(harness.told[one])
    harness.ask(one, 0)
    harness.absent = {SPINE: GONE}  # where the job is not
    harness.ask(one, 0)
    assert len(harness.told[one]) == told
    harness.absent = {LEAF1: GONE}
    harness.tick(0.1)
    harness.ask(one, 0)
    [notice] = harness.told[one][told:]
    assert notice.waiting.what == pb.Waiting.AWAY
    assert notice.waiting.why == f"the switch leaf1 cannot be used: {GONE}"


@pytest.mark.parametrize(
    ("switch", "condition", "why"),
    [
        (SPINE, Unavailable(GONE), f"the switch spine cannot be used: {GONE}"),
        (
            SPINE,
            Unavailable("it is being drained", SwitchState.DRAINING),
            "the switch spine cannot be used: it is being drained",
        ),
        (LEAF2, Unavailable("port 9 of leaf2 is down", SwitchState.UPLINK_DOWN), "port 9 of leaf2 is down"),
    ],
    ids=["gone", "draining", "link down"],
)
def test_a_job_over_racks_needs_the_spine_and_the_ways_there(switch: int, condition: Unavailable, why: str) -> None:
    harness = TreeHarness()
    found = {switch: condition}
    if condition.state is SwitchState.UPLINK_DOWN:
        harness.switches.uplink_trouble = lambda _, at: found.get(at)  # type: ignore[assignment,method-assign]
    else:
        harness.switches.conditions = lambda number: [condition] if number == switch else []
    one, two = harness.join(0, 2, name="wide"), harness.join(1, 2, name="wide")
    harness.hear(one, LEAF1)
    harness.hear(two, LEAF2)
    for session in (one, two):
        assert (harness.last(session).reason, harness.last(session).message) == (pb.JOIN_REFUSED, f"job 'wide': {why}")
    assert not harness.installs
    harness.ready_at(LEAF1, LEAF1, name="a rack")
    if switch == LEAF2:
        harness.ready_at(LEAF2, LEAF2, name="another rack")
    harness.switches.conditions = lambda _: []
    found.clear()
    harness.ready_at(LEAF1, LEAF2)


@pytest.mark.parametrize(
    ("trees", "options", "named"),
    [
        (Trees(["one", "two"]), {"switch": "two"}, "two"),
        (TWO_LEAVES, {"switch": "leaf1"}, "leaf1"),
    ],
)
def test_who_needs_a_switch_in_any_case_is_refused_at_once(trees: Trees, options: dict[str, str], named: str) -> None:
    harness = TreeHarness(trees)
    harness.absent = {1: GONE}
    refused = harness.join(0, 2, **options)  # type: ignore[arg-type]
    assert f"rank 0 is refused: the switch {named} cannot be used: {GONE}" in harness.last(refused).message
    harness.absent.clear()
    waiting = harness.join(0, 2, name="another", **options)  # type: ignore[arg-type]
    harness.absent = {1: GONE}
    harness.tick(0.1)
    assert f"the switch {named} cannot be used: {GONE}" in harness.last(waiting).message
    assert [pool.used for pool in harness.jobs.pools] == [0] * len(trees.names)


def test_who_may_be_at_a_switch_that_is_away_is_told_of_it_in_the_end() -> None:
    harness = TreeHarness()
    harness.absent = {LEAF2: GONE}
    session = harness.join(0, 1, timeout_s=1.0)
    harness.tick(2.0)
    assert harness.last(session).message.endswith(f"; the switch leaf2 cannot be used: {GONE}")


def test_a_job_that_is_ready_is_none_of_that() -> None:
    harness = TreeHarness()
    harness.ready_at(LEAF1, LEAF2)
    harness.absent = dict.fromkeys((SPINE, LEAF1, LEAF2), GONE)
    harness.tick(0.1)
    assert [job.state.value for job in harness.jobs] == ["ready"]


def test_a_leaf_that_its_parent_has_not_heard_costs_only_jobs_over_racks() -> None:
    harness = TreeHarness()
    del harness.switches.children[LEAF2, SPINE]
    harness.ready_at(LEAF2, LEAF2)
    one, two = harness.join(0, 2, name="wide"), harness.join(1, 2, name="wide")
    harness.hear(one, LEAF1)
    # The port at which the spine has leaf2 is not known yet, so this HELLO may have come through the leaf.
    assert not harness.hear(two, SPINE, port=LEAF2)
    assert harness.hear(two, LEAF2)
    assert "the switch leaf2 has not been heard by its parent spine; check the cable" in harness.last(one).message
    harness.switches.children[LEAF2, SPINE] = Heard(LEAF2, ADDRESSES[LEAF2], 0, 0, LEAF2, 1)
    harness.ready_at(LEAF1, LEAF2, name="later")


# --- status ----------------------------------------------------------------------------------------------------------


def test_operators_see_each_switch_in_one_state() -> None:
    """There are two trees, spine with leaf1, and root. Besides, there is leaf2, which its parent has not heard."""
    switches = [FakeSwitch(number=number) for number in range(4)]
    trees = Trees(["spine", "leaf1", "leaf2", "root"], {LEAF1: Uplink(9, SPINE), LEAF2: Uplink(9, SPINE)})
    for switch in switches:
        switch._connected.set()
    inventory = Inventory(switches, trees)
    inventory.children[LEAF1, SPINE] = Heard(LEAF1, ADDRESSES[LEAF1], 0, 0, LEAF1, 1)
    jobs = Jobs(inventory)

    def states() -> list[tuple[str, str]]:
        return [(one.state, one.problem) for one in asyncio.run(status_of(jobs, inventory, 0.0)).switches]

    unheard = "its parent spine has not heard it"
    assert states() == [("Ready", ""), ("Ready", ""), ("UplinkDown", unheard), ("Ready", "")]
    inventory.members[LEAF2].draining = inventory.members[3].draining = True
    drained = "it is being drained"
    assert states() == [("Ready", ""), ("Ready", ""), ("UplinkDown", f"{unheard}; {drained}"), ("Cordoned", drained)]
    inventory.members[3].leaving = True
    assert states()[3] == ("Draining", "it is being removed")
    inventory.members[3].draining = inventory.members[3].leaving = False
    switches[SPINE].problem = "pulled"
    gone = "unreachable for 7 s: pulled"
    why = f"the switch spine cannot be used: {gone}"
    assert states()[:2] == [("NotReady", gone), ("Unschedulable", why)]


def test_a_switch_that_hangs_does_not_keep_status_from_telling_of_the_others(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "SWITCH_TIMEOUT", 0.3)
    running = start(Running, switches=3)

    async def hang() -> dict[str, int]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(running.switches[1], "outcomes", hang)
    running.loop.call(running.switches[2].disconnect)
    before = time.monotonic()
    switches = running.look().switches
    assert time.monotonic() - before < 10
    assert [(switch.state, switch.problem, switch.outcomes["hello"]) for switch in switches] == [
        ("Ready", "", 7),
        ("NotReady", "no answer within 0.3 s", 0),
        ("NotReady", "unreachable for 7 s: pulled", 0),
    ]


# --- a controller ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def targets() -> Iterator[list[Target]]:
    with TARGETS["sim"]() as one, TARGETS["sim"]() as two:
        yield [one, two]


@pytest.mark.parametrize("hangs", [False, True])
def test_one_switch_that_is_away_keeps_nobody_from_the_other(loop: Loop, targets: list[Target], hangs: bool) -> None:
    """The first is a spine, which no job of the leaf alone needs."""
    proxy = Proxy(targets[0].grpc_address)
    if hangs:
        proxy.hold()
    else:
        proxy.cut()
    leaf = targets[1].grpc_address
    options = {"switch": [proxy.address, leaf], "address": ["10.0.0.253", SWITCH.ip], "listen": "127.0.0.1:0"}
    options |= {"ports": list(range(1, PORTS + 1)), "uplink": [f"{leaf}:{PORTS}={proxy.address}"]}
    whole = a_controller(load(None, options), 20.0)
    before = time.monotonic()
    controller = loop.run(whole.__aenter__())
    ranks = []

    def hello(assigned: Assigned) -> None:
        frame = build(hello_packet(assigned), host(1 + assigned.worker), SWITCH)
        targets[1].sockets[1 + assigned.worker].send(frame)

    try:
        assert time.monotonic() - before < 10  # two leases, for which ranks wait that come back
        ranks = [Rank(controller.service.address, rank, 2, send_hello=hello) for rank in range(2)]
        ready(ranks)
        spine, there = loop.run(controller.status()).switches
        assert (spine.state, there.state) == ("NotReady", "UplinkDown")
        assert spine.problem.startswith("unreachable for ")
        proxy.mend()
        wait_until(lambda: loop.run(controller.status()).switches[0].state == "Ready", "it to be taken in")
        assert [rank.session.aborted for rank in ranks] == [None, None]
    finally:
        for rank in ranks:
            rank.session.close()
        loop.run(whole.__aexit__(None, None, None))
        proxy.close()
