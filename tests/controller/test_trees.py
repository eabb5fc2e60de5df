# SPDX-License-Identifier: Apache-2.0
"""Jobs over leaves and spines: who is a worker of whom, and what ranks and switches are told."""

from __future__ import annotations

import asyncio
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.toml import tomllib
from p4reduce_controller.commands.views import show
from p4reduce_controller.fabric import uplinks
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.settings.example import EXAMPLE_OF_A_TREE
from p4reduce_controller.settings.settings import Settings, load
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.switches.trees import Misplaced, NamedUplink, Trees, Uplink
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import ADDRESSES, LEAF1, LEAF2, SPINE, TWO_LEAVES, UP, TreeHarness
from tests.support.controller.running import Loop
from tests.support.waiting import wait_until

# --- trees by themselves ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_every_rank_and_every_switch_has_one_place(places: list[int]) -> None:
    """The tree has three levels: 0 is above 1 and 2, 1 is above 3 and 4, and 2 is above 5."""
    parents = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}
    trees = Trees([str(n) for n in range(6)], {child: Uplink(1, parent) for child, parent in parents.items()})
    at = dict(enumerate(places))
    try:
        nodes = trees.nodes(at)
    except Misplaced:
        assert max(map(places.count, range(6))) > 30
        return
    assert sorted(rank for node in nodes for rank in node.ranks) == list(at)
    assert all(at[rank] == node.switch for node in nodes for rank in node.ranks)
    (root, *others) = nodes
    assert root.parent is None
    children = [child for node in nodes for child in node.children]
    assert sorted(children) == sorted(node.switch for node in others)
    assert all(parents[node.switch] == node.parent for node in others)
    # A root that would only pass on one child's packets is left out. A leaf turns its ranks' packets into its own.
    assert len(root.ranks) + len(root.children) > (0 if root.ranks else 1)
    assert all(node.ranks or node.children for node in nodes)


def test_circles_are_refused() -> None:
    with pytest.raises(ValueError, match="the uplinks form a cycle: a, b, a"):
        Trees(["a", "b", "c"], {0: Uplink(1, 1), 1: Uplink(1, 0), 2: Uplink(1, 0)})
    with pytest.raises(ValueError, match="cycle"):
        Trees(["c", "a", "b"], {0: Uplink(1, 1), 1: Uplink(1, 2), 2: Uplink(1, 1)})


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_ranks_are_told_their_switch_and_who_else_is_there() -> None:
    harness = TreeHarness()
    told = harness.ready_at(LEAF2, LEAF1, LEAF2)
    assert [(list(ready.aggregators), list(ready.peers)) for ready in told] == [
        ([LEAF2], [0, 2]),
        ([LEAF1], [1]),
        ([LEAF2], [0, 2]),
    ]


def test_switches_are_told_who_is_below_and_who_is_above() -> None:
    harness = TreeHarness()
    harness.ready_at(LEAF2, LEAF1, LEAF2)
    spine, leaf1, leaf2 = (harness.placements[switch] for switch in (SPINE, LEAF1, LEAF2))
    assert [worker.worker for worker in leaf2.workers] == [0, 2]
    assert [worker.worker for worker in leaf1.workers] == [1]
    assert [(worker.port, worker.sender) for worker in spine.workers] == [(1, ADDRESSES[1]), (2, ADDRESSES[2])]
    assert (spine.parent, spine.has_ranks) == (None, False)
    for index, leaf in enumerate((leaf1, leaf2)):
        assert (leaf.parent.port, leaf.parent.endpoint, leaf.parent.worker) == (UP, ADDRESSES[SPINE], index)
        assert leaf.has_ranks


def test_a_rank_at_the_spine_comes_before_its_leaves() -> None:
    harness = TreeHarness()
    harness.ready_at(LEAF1, SPINE)
    assert [worker.sender.ip for worker in harness.placements[SPINE].workers] == ["10.0.0.1", "10.0.255.1"]
    parent = harness.placements[LEAF1].parent
    assert parent.worker == 1
    assert LEAF2 not in harness.placements


def test_what_comes_from_another_switch_does_not_say_where_a_rank_is() -> None:
    """A HELLO meant for leaf 2 crosses leaf 1 and the spine; neither the spine's port nor the uplink is the rank's."""
    harness = TreeHarness()
    one = harness.join(0, 1)
    assert not harness.hear(one, LEAF2, port=UP)
    assert not harness.hear(one, SPINE, port=1)
    assert harness.hear(one, LEAF1)
    assert not harness.hear(one, LEAF2)
    assert harness.installs[0].placements.keys() == {LEAF1}


def test_a_rank_may_say_where_it_is() -> None:
    harness = TreeHarness()
    one = harness.join(0, 1, switch="leaf2")
    assert [endpoint.ip for endpoint in harness.assigned(one).aggregators] == ["10.0.255.2"]
    assert not harness.hear(one, LEAF1)
    assert harness.hear(one, LEAF2)
    harness.installed()
    assert list(harness.told[one][-1].ready.aggregators) == [0]
    refused = harness.join(0, 1, name="other", switch="leaf3")
    assert "its switch is 'leaf3', and the switches are spine, leaf1, leaf2" in harness.last(refused).message


def test_too_many_ranks_at_a_leaf_are_refused() -> None:
    harness = TreeHarness()
    sessions = [harness.join(rank, 33) for rank in range(33)]
    for rank, session in enumerate(sessions):
        harness.hear(session, LEAF2 if rank == 32 else LEAF1)
    for session in sessions:
        assert ("32 workers and 0 switches are below leaf1, and a switch adds up at most 31 of them") in harness.last(
            session
        ).message
    assert not harness.installs
    assert [pool.used for pool in harness.jobs.pools] == [0, 0, 0]


def test_who_was_not_heard_is_named_with_all_switches_of_the_tree() -> None:
    harness = TreeHarness()
    session = harness.join(0, 1, timeout_s=1.0)
    harness.tick(2.0)
    message = harness.last(session).message
    assert "no HELLO from there reached the switch at " + " or ".join(map(str, ADDRESSES)) in message


def test_several_trees_share_the_slots() -> None:
    trees = Trees(["root", "spine", "leaf"], {2: Uplink(UP, 1)})
    harness = TreeHarness(trees)
    one, two = harness.join(0, 2, slots=5), harness.join(1, 2, slots=5)
    assert [endpoint.tree for endpoint in harness.assigned(one).aggregators] == [0, 1, 1]
    for session in (one, two):
        assert harness.hear(session, 0)
        assert harness.hear(session, 2)
    assert [pool.used for pool in harness.jobs.pools] == [3, 0, 3]
    assert harness.installs[0].placements.keys() == {0, 2}
    harness.installed()
    assert list(harness.told[one][-1].ready.aggregators) == [0, 2]


def test_a_rack_fills_no_other_switch_than_its_own() -> None:
    harness = TreeHarness(slots=16)
    for number in range(4):
        harness.ready_at(LEAF1, LEAF1, name=f"rack {number}")
    assert [pool.used for pool in harness.jobs.pools] == [0, 16, 0]
    harness.ready_at(LEAF2, LEAF2, name="another rack")
    assert harness.placements[LEAF2].slots == SlotRange(0, 4)
    one, two = harness.join(0, 2, name="wide"), harness.join(1, 2, name="wide")
    harness.hear(one, LEAF2)
    harness.hear(two, LEAF1)
    for session in (one, two):
        message = harness.last(session).message
        assert (
            f"job 'wide': all ranks were heard, but 4 slots asked, 0 of 16 free at the switch {ADDRESSES[1]}" in message
        )
    assert [pool.used for pool in harness.jobs.pools] == [0, 16, 4]


def test_slots_of_a_switch_that_every_job_needs_are_taken_when_the_first_rank_joins() -> None:
    harness = TreeHarness(Trees(["root", "spine", "leaf"], {2: Uplink(UP, 1)}))
    harness.join(0, 2, slots=6)
    assert [pool.used for pool in harness.jobs.pools] == [3, 0, 0]


def test_where_no_switch_has_room_who_joins_is_refused_at_once() -> None:
    harness = TreeHarness(slots=16)
    for switch in (SPINE, LEAF1, LEAF2):
        for number in range(4):
            harness.ready_at(switch, switch, name=f"{switch} {number}")
    assert "4 slots asked, 0 of 16 free at the switch" in harness.last(harness.join(0, 2, name="late")).message


def test_switches_may_give_a_job_different_ranges() -> None:
    harness = TreeHarness()
    harness.ready_at(LEAF1, LEAF1, name="rack")
    harness.ready_at(LEAF1, LEAF2, name="wide")
    assert [harness.placements[switch].slots.first for switch in (SPINE, LEAF1, LEAF2)] == [0, 4, 0]
    for session in [("wide", rank, 0) for rank in range(2)]:
        harness.leave(session)
    harness.removed()
    assert [pool.used for pool in harness.jobs.pools] == [0, 4, 0]


def test_ranks_share_a_switch_in_every_tree_or_in_none() -> None:
    trees = Trees(["root", "spine", "leaf"], {2: Uplink(UP, 1)})
    harness = TreeHarness(trees)
    one, two = harness.join(0, 2), harness.join(1, 2)
    for session, switch in ((one, 1), (two, 2)):
        harness.hear(session, 0)
        harness.hear(session, switch)
    assert "some ranks share a switch in one tree and not in another" in harness.last(one).message
    assert all(job.state is not State.INSTALLING for job in harness.jobs)


# --- the service -----------------------------------------------------------------------------------------------------


def service_of(loop: Loop) -> tuple[Controller, list[FakeSwitch]]:
    async def start() -> tuple[Controller, list[FakeSwitch]]:
        switches = [FakeSwitch(number=number) for number in range(3)]
        for leaf in (LEAF1, LEAF2):
            switches[leaf].cables[UP] = [(switches[SPINE], leaf)]
            switches[SPINE].cables[leaf] = [(switches[leaf], UP)]
        switches[SPINE].cables[7] = switches[SPINE].cables[LEAF2]
        inventory = Inventory(switches, TWO_LEAVES)
        controller = Controller(inventory, Jobs(inventory), ServiceConfig(listen="127.0.0.1:0"))
        for number, switch in enumerate(switches):
            await switch.start(controller.listener(number), 1.0)
        return controller, switches

    return loop.run(start())


def test_leaves_find_their_spine(loop: Loop) -> None:
    controller, switches = service_of(loop)
    loop.run(controller.uplinks.find_all(1.0))
    assert [switch.log for switch in switches] == [["say_hello"] * 2, ["say_hello"], ["say_hello"]]
    loop.run(controller.close())


def test_a_leaf_that_its_spine_does_not_hear_is_named_and_taken_in_when_it_is_heard(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    controller, switches = service_of(loop)
    cables = dict(switches[LEAF2].cables)
    switches[LEAF2].cables.clear()
    loop.run(asyncio.wait_for(controller.uplinks.find_all(0.3), 5.0))
    assert (
        "the switch leaf2 has sent HELLOs out of its port 9 for 0.3 s, and none has reached its parent spine"
        in caplog.text
    )

    def problems() -> list[str]:
        return [switch.problem for switch in loop.run(controller.status()).switches]

    assert problems() == ["", "", "its parent spine has not heard it"]
    switches[LEAF2].cables.update(cables)
    wait_until(lambda: not any(problems()), "the leaf to be heard")
    loop.run(controller.close())


@pytest.mark.parametrize(
    ("cable", "port", "problem"),
    [
        ([LEAF1], LEAF2, "spine no longer hears leaf2; check the cable at its port 9"),
        ([SPINE], 7, ""),
    ],
    ids=["to another switch", "to another port"],
)
def test_a_cable_that_is_changed_later_is_noticed(
    loop: Loop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    cable: list[int],
    port: int,
    problem: str,
) -> None:
    """`cable`: the switch at its other end."""
    for name in ("PROBE_INTERVAL", "RETRY_INTERVAL"):
        monkeypatch.setattr(uplinks, name, 0.01)
    controller, switches = service_of(loop)
    loop.run(controller.uplinks.find_all(1.0))
    before = dict(switches[LEAF2].cables)

    def found() -> tuple[int, str, str]:
        leaf = loop.run(controller.status()).switches[LEAF2]
        return controller.inventory.children[LEAF2, SPINE].port, leaf.state, leaf.problem

    assert found() == (LEAF2, "Ready", "")
    switches[LEAF2].cables[UP] = [(switches[other], 7) for other in cable]
    wait_until(lambda: found() == (port, "UplinkDown" if problem else "Ready", problem), "the cable to be missed")
    switches[LEAF2].cables.update(before)
    wait_until(lambda: found() == (LEAF2, "Ready", ""), "the cable to be back")
    assert ("spine no longer hears leaf2" in caplog.text) == bool(problem)
    assert ("spine hears leaf2 at port 7, and no longer at port 2" in caplog.text) == (cable == [SPINE])
    loop.run(controller.close())


def test_a_leaf_that_comes_into_another_vlan_is_noticed(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplinks, "PROBE_INTERVAL", 0.01)
    controller, switches = service_of(loop)
    loop.run(controller.uplinks.find_all(1.0))
    switches[LEAF2].vlans[UP] = 30
    text = "spine hears leaf2 at port 2 in VLAN 30, and no longer at port 2"
    wait_until(lambda: text in caplog.text, "the VLAN to be noticed")
    assert "say_hello in VLAN 30" in switches[SPINE].log
    loop.run(controller.close())


def test_a_cable_that_breaks_in_one_direction_is_noticed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spine hears the leaf, and the leaf does not hear the spine's results."""
    monkeypatch.setattr(uplinks, "PROBE_INTERVAL", 0.01)
    controller, switches = service_of(loop)
    loop.run(controller.uplinks.find_all(1.0))
    leaf2 = switches[SPINE].cables.pop(LEAF2)

    def found() -> list[tuple[str, str]]:
        return [(one.state, one.problem) for one in loop.run(controller.status()).switches]

    why = "leaf2 does not hear spine; check the cable at port 9 of leaf2"
    wait_until(lambda: found() == [("Ready", ""), ("Ready", ""), ("UplinkDown", why)], "the leaf to miss the spine")
    switches[SPINE].cables[LEAF2] = [(switches[LEAF2], UP + 1)]  # answers that arrive elsewhere do not count
    loop.run(asyncio.sleep(0.1))
    assert found()[LEAF2][1] == why
    switches[SPINE].cables[LEAF2] = leaf2
    switches[SPINE].vlans[LEAF2] = 30  # neither do answers with a tag, which the leaf does not admit
    loop.run(asyncio.sleep(0.1))
    assert found()[LEAF2][1] == why
    switches[SPINE].vlans.clear()
    wait_until(lambda: not any(problem for _, problem in found()), "the leaf to hear the spine")
    loop.run(controller.close())


def test_a_hello_that_was_under_way_when_its_switch_was_removed_is_ignored(loop: Loop) -> None:
    controller, _ = service_of(loop)
    loop.run(controller.uplinks.find_all(1.0))
    inventory = controller.inventory

    def remove_and_hear() -> bool:
        hello = inventory.children.pop((LEAF2, SPINE))
        del inventory.members[LEAF2], inventory.switches[LEAF2]
        inventory.site = inventory.site_of()
        return controller.uplinks.on_hello(SPINE, hello)

    assert not loop.call(remove_and_hear)
    assert (LEAF2, SPINE) not in inventory.children
    loop.run(controller.close())


def test_people_see_at_which_switch_a_rank_is() -> None:
    console = Console(record=True, width=160, file=io.StringIO())
    places = [
        pb.Attachment(heard=True, switch=1, port=5, ip="10.0.0.1", udp_port=5001),
        pb.Attachment(heard=True, switch=2, port=6, ip="10.0.0.1", udp_port=5001, vlan=20),
    ]
    switches = [
        pb.Switch(name=name, address=f"a:{n}", parent="spine" if n else "", state="Ready")
        for n, name in enumerate(TWO_LEAVES.names)
    ]
    job = pb.Job(
        name="job",
        world_size=1,
        pools=[pb.Pool(switch=2, first=4, count=4)],
        slots=4,
        members=[pb.Member(places=places)],
    )
    show(pb.StatusReply(switches=switches, jobs=[job]), console)
    text = console.export_text()
    assert "switch leaf1 at a:1 Ready, below spine" in text
    assert "10.0.0.1:5001 on port 5 of leaf1" in text
    assert "10.0.0.1:5001 in VLAN 20 on port 6 of leaf2" in text
    assert "no HELLO yet" not in text
    assert "4-7 of leaf2" in text


# --- settings --------------------------------------------------------------------------------------------------------


def made_of(settings: Settings) -> tuple[list[SwitchConfig], dict[str, tuple[NamedUplink, ...]]]:
    return settings.switch_configs(), settings.uplinks()


def test_trees_in_a_file() -> None:
    configs, uplinks = made_of(load(None, tomllib.loads(EXAMPLE_OF_A_TREE)))
    assert uplinks == {"spine": (), "leaf1": ((3, "spine"),), "leaf2": ((3, "spine"),)}
    assert [config.target for config in configs] == ["127.0.0.1:9559", "127.0.0.1:9560", "127.0.0.1:9561"]
    assert [config.address.ip for config in configs] == ["10.0.255.1", "10.0.255.2", "10.0.255.3"]
    assert configs[1].hosts == {"02:00:00:00:00:01": 1}
    assert list(configs[0].ports) == [1, 2]


def test_trees_by_options() -> None:
    options = {"switch": ["a:1", "a:2"], "address": ["10.0.0.1", "10.0.0.2"], "uplink": ["a:2:7=a:1"]}
    assert load(None, options).uplinks() == {"a:1": (), "a:2": ((7, "a:1"),)}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"uplink": ["a:2=a:1"]}, "uplink a:2=a:1: a is not a switch; the switches are a:1, a:2"),
        ({"uplink": ["a:2:x=a:1"]}, "must be LEAF:PORT=SPINE"),
        ({"uplink": ["a:2:7=a:3"]}, "uplink a:2:7=a:3: a:3 is not a switch"),
        ({"uplink": ["a:2:7=a:1", "a:2:8=a:1"]}, "there is a:2:7=a:1 already; give one for each port and parent"),
        ({"uplink": ["a:2:7=a:1", "a:1:7=a:2"]}, "cycle"),
        ({"uplink": ["a:2:511=a:1"]}, "port 511: must be from 1 to 509"),
        ({"switches": [{"switch": "b:1", "wrong": 1}]}, "switch belongs in each"),
    ],
)
def test_what_is_not_accepted_is_named(changes: dict[str, object], text: str) -> None:
    options = {"switch": ["a:1", "a:2"], "address": ["10.0.0.1", "10.0.0.2"], **changes}
    with pytest.raises(SettingsError, match=text):
        made_of(load(None, options))


@pytest.mark.parametrize(
    ("switches", "text"),
    [
        ([{"switch": "b:1", "wrong": 1}], "switches: unknown wrong; known are name, uplink, spare, address"),
        ([{"name": "b"}], "lacks switch"),
        ([{"switch": "b:1", "uplink": 3}], "uplink = 3: accepted is as"),
        ([{"switch": "b:1"}, {"switch": "b:1"}], "switches b:1, b:1: give each switch a name of its own"),
        ([{"switch": ["b:1", "b:2"]}], r"each \[\[switches\]\] table needs"),
        ([{"switch": "b:1", "ports": ["x"]}], r"switches: ports = \['x'\]: must be a list; each element must be"),
    ],
)
def test_what_is_not_accepted_in_a_file_is_named(switches: list[dict[str, object]], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        made_of(Settings(switches=switches))


def test_there_are_at_most_so_many_trees() -> None:
    switches = [{"switch": f"a:{n}", "address": f"10.0.0.{n}"} for n in range(33)]
    with pytest.raises(SettingsError, match="33 switches without a parent: accepted are up to 32"):
        Settings(switches=switches).uplinks()
