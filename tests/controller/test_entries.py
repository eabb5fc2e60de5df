# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a switch's entries stays right when the switch refuses writes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finsy as fy
import pytest
from finsy.proto import p4r
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_controller.p4runtime.program import FLOOD_GROUP, P4INFO, Program, load_schema
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import Heard, Parent, Placement, SwitchError, SwitchUnavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange

COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
SCHEMA = load_schema()
SWITCH = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
IPV6_SWITCH = Endpoint("02:00:00:00:00:fe", "fd00::fe", 31314)
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


class FakeLink:
    """A fake link that keeps what is written. The next writes raise the errors in `refuse`, one each."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.holds: dict[bytes, p4r.Entity] = {}  # entries, without what they do: the whole
        self.refuse: list[SwitchError | None] = []

    async def write(self, updates: Sequence[p4r.Update], *, missing_ok: bool = False) -> None:
        self.writes.append([update.type for update in updates])
        if self.refuse and (error := self.refuse.pop(0)):
            raise error
        updates = [update for update in updates if not update.entity.HasField("meter_entry")]
        keys = [self._key(update.entity) for update in updates]
        assert len(set(keys)) == len(keys), "a switch may take the updates of one request in any order"
        for key, update in zip(keys, updates, strict=True):
            assert update.type != INSERT or key not in self.holds
            assert update.type != DELETE or key in self.holds or missing_ok
            self.holds[key] = update.entity
            if update.type == DELETE:
                del self.holds[key]

    async def read(self, wanted: Sequence[Any]) -> AsyncIterator[Any]:
        for kind in {type(entry) for entry in wanted}:
            field = "table_entry" if kind is fy.P4TableEntry else "packet_replication_engine_entry"
            for entity in [one for one in self.holds.values() if one.HasField(field)]:
                yield kind.decode(entity, SCHEMA)

    @staticmethod
    def _key(entity: p4r.Entity) -> bytes:
        key = p4r.Entity()
        key.CopyFrom(entity)
        if key.HasField("table_entry"):
            key.table_entry.ClearField("action")
        else:
            key.packet_replication_engine_entry.multicast_group_entry.ClearField("replicas")
        return key.SerializeToString(deterministic=True)


def connected(
    program: Program | None = None, address: Endpoint = SWITCH, **config: Any
) -> tuple[P4RuntimeSwitch, FakeLink]:
    config_of = SwitchConfig("nowhere", address, **config)
    switch, link = P4RuntimeSwitch(config_of, program or Program(SCHEMA)), FakeLink()
    switch._link = link  # type: ignore[assignment]
    return switch, link


def tofino(profile: str, folder: Path) -> Program:
    """Return a program for Tofino."""
    shutil.copy(COMPILED / f"{profile}.p4info.txtpb", folder / P4INFO)
    (folder / "p4reduce.bin").write_bytes(b"a program")
    return Program(load_schema(folder))


def placement(workers: int = 2) -> Placement:
    heard = [Heard(1, Endpoint(f"02:00:00:00:00:0{i}", "10.0.0.1", 5000 + i), 1, 1, i, 0) for i in range(workers)]
    hosts = tuple((one.sender.mac, one.port) for one in heard)
    return Placement(1, 1, SlotRange(0, 4), 2, tuple(heard), hosts=hosts)


async def test_a_job_is_written_once_and_taken_off_once() -> None:
    switch, link = connected()
    await switch.install(placement())
    assert link.writes == [[INSERT] * 5, [INSERT] * 2]  # group, 2 deliveries, 2 admissions; 2 hosts
    await switch.fence(placement())
    await switch.forget(placement())
    assert link.writes[2:] == [[DELETE] * 2, [DELETE] * 5]
    await switch.fence(placement())
    assert link.writes[-1] == []
    await switch.install(placement())
    assert link.writes[5:] == [[INSERT] * 5, [INSERT] * 2]


def numbers_of(link: FakeLink, table: str, field: str) -> set[int]:
    """Return the values of that field in the entries of a table: of a match field, or of an action's parameter."""
    entries = [fy.P4TableEntry.decode(one, SCHEMA) for one in link.holds.values() if one.HasField("table_entry")]
    found = set()
    for entry in entries:
        values = {**(entry.match or {}), **(entry.action.args if isinstance(entry.action, fy.Action) else {})}
        if entry.table_id.rpartition(".")[2] == table:
            found.add(int(values[field]))
    return found


@settings(deadline=None)
@given(
    st.sampled_from([(SWITCH, 4), (IPV6_SWITCH, 6)]).flatmap(
        lambda one: st.tuples(st.just(one[0]), *[st.ip_addresses(v=one[1])] * 3)
    )
)
def test_addresses_of_both_families_are_written_and_read_back(
    addresses: tuple[Endpoint, IPv4Address | IPv6Address, IPv4Address | IPv6Address, IPv4Address | IPv6Address],
) -> None:
    """An IPv4 address is mapped (RFC 4291). The next controller finds every entry as it would write it."""
    switch_address, *ips = addresses
    senders = [Endpoint(f"02:00:00:00:00:0{number}", str(ip), 5000 + number) for number, ip in enumerate(ips)]
    workers = tuple(Heard(1, sender, 1, 1, number, 0) for number, sender in enumerate(senders[:2]))
    job = Placement(1, 1, SlotRange(0, 4), 2, workers, parent=Parent(9, senders[2], worker=3))

    def mapped(ip: str) -> int:
        return int(IPv6Address(f"::ffff:{ip}" if "." in ip else ip))

    async def play() -> None:
        switch, link = connected(address=switch_address)
        await switch._desired.reconcile(link)  # type: ignore[arg-type]
        await switch.install(job)
        assert numbers_of(link, "jobs", "source_ip") == {mapped(one.ip) for one in senders}
        assert numbers_of(link, "workers", "ip") == {mapped(one.ip) for one in senders[:2]}
        assert numbers_of(link, "uplinks", "ip") == {mapped(senders[2].ip)}
        for table in ("own_addresses", "own_sources"):
            assert numbers_of(link, table, "address") == {mapped(switch_address.ip)}
        later, _ = connected(address=switch_address)
        later._link = link  # type: ignore[assignment]
        later.expect(job)
        link.writes.clear()
        assert await later._desired.reconcile(link) == frozenset()  # type: ignore[arg-type]
        assert INSERT not in link.writes[0]
        assert DELETE not in link.writes[0]
        await later.fence(job)
        await later.forget(job)
        assert numbers_of(link, "jobs", "source_ip") == numbers_of(link, "uplinks", "ip") == set()

    asyncio.run(play())


async def test_a_host_is_known_until_the_last_job_with_a_rank_there_has_gone() -> None:
    switch, link = connected()
    other = replace(placement(1), job=2)
    await switch.install(placement())
    await switch.install(other)
    assert link.writes[2:] == [[INSERT] * 3, []]
    await switch.forget(placement())
    assert link.writes[4:] == [[DELETE] * 4]  # group, 2 deliveries, and the host where the other has no rank
    link.refuse = [SwitchError("busy")]
    with pytest.raises(SwitchError, match="busy"):
        await switch.forget(other)
    await switch.forget(other)
    assert link.writes[5:] == [[DELETE] * 3] * 2


async def test_a_leaf_has_two_entries_more_for_its_parent() -> None:
    """These are its link up, and the parent's right to answer, which is fenced with the workers' rights."""
    parent = Parent(9, Endpoint("02:00:0a:00:00:01", "10.0.0.1", 31314), worker=3)
    switch, link = connected()
    leaf = replace(placement(), parent=parent)
    await switch.install(leaf)
    assert link.writes[0] == [INSERT] * 7
    await switch.fence(leaf)
    await switch.forget(leaf)
    assert link.writes[2:] == [[DELETE] * 3, [DELETE] * 6]
    program = Program(SCHEMA)
    workers = {
        entry.match["worker"]: entry.action.args["worker_bit"]
        for entry in program.admissions(replace(placement(), parent=parent))
        if entry.match and isinstance(entry.action, fy.Action)
    }
    assert workers == {0: 1, 1: 2, 31: 1 << 31}


LAGS = ((1, 2), (7, 8, 9))
UP = dict.fromkeys((1, 2, 7, 8, 9), "UP")


def in_groups(port: int = 1) -> Placement:
    """Return a leaf's placement: its workers were heard at this port of `LAGS`, and the parent is behind port 9."""
    workers = tuple(replace(worker, port=port, lag=LAGS[0]) for worker in placement().workers)
    parent = Parent(9, Endpoint("02:00:0a:00:00:01", "10.0.0.1", 31314), worker=3)
    return replace(placement(), workers=workers, hosts=(("02:00:00:00:00:00", port),), parent=parent)


async def test_a_worker_in_a_vlan_is_admitted_and_addressed_with_it() -> None:
    switch, link = connected()
    first, second = placement().workers
    await switch.install(replace(placement(), workers=(first, replace(second, vlan=20))))
    entries = [fy.P4TableEntry.decode(one, SCHEMA) for one in link.holds.values() if one.HasField("table_entry")]
    by_table = {
        table: [one for one in entries if one.table_id.rpartition(".")[2] == table] for table in ("jobs", "workers")
    }
    assert sorted(one.match["vlan"] for one in by_table["jobs"] if one.match) == [0, 20]
    actions = [one.action for one in by_table["workers"] if isinstance(one.action, fy.Action)]
    assert sorted((action.name.rpartition(".")[2], action.args.get("vlan")) for action in actions) == [
        ("address", None),
        ("address_in_vlan", 20),
    ]


@pytest.mark.parametrize("profile", ["tofino1-32", "tofino1-64", "tofino2-64"])
async def test_a_program_without_vlans_refuses_workers_in_them_and_no_others(profile: str, tmp_path: Path) -> None:
    switch, link = connected(program=tofino(profile, tmp_path))
    assert not switch.knows_vlans
    first, second = placement().workers
    job = replace(placement(), workers=(first, replace(second, vlan=20)))
    with pytest.raises(SwitchError) as refused:
        await switch.install(job)
    assert str(refused.value) == (
        "the switch at nowhere cannot take the job: its program admits only workers without a VLAN tag, and "
        "10.0.0.1:5001 at port 1 is in VLAN 20"
    )
    await switch.fence(job)
    await switch.forget(job)
    assert link.holds == {}
    await switch.install(placement())
    assert link.holds


async def test_a_program_for_roots_refuses_to_be_a_leaf(tmp_path: Path) -> None:
    switch, _ = connected(program=tofino("tofino1-64", tmp_path))
    leaf = replace(placement(), parent=Parent(9, SWITCH, worker=3))
    with pytest.raises(SwitchError, match="nowhere cannot take the job: its program cannot run on a leaf"):
        await switch.install(leaf)
    await switch.fence(leaf)
    await switch.forget(leaf)


async def test_workers_and_the_parent_are_admitted_at_each_port_of_their_group() -> None:
    """The group of ports 1 and 2 has both workers, and that of 7, 8 and 9 has the parent."""
    switch, link = connected(lags=LAGS)
    leaf = in_groups()
    await switch.install(leaf)
    assert link.writes[0] == [INSERT] * (4 + 2 * 2 + 3)  # group, 2 deliveries and the uplink; admissions
    keys = [p4r.Entity.FromString(key).table_entry for key in link.holds]
    ports = sorted(int.from_bytes(one.match[0].exact.value, "big") for one in keys if len(one.match) == 7)
    assert ports == [1, 1, 2, 2, 7, 8, 9]
    await switch.fence(leaf)
    await switch.forget(leaf)
    assert link.writes[2:] == [[DELETE] * 7, [DELETE] * 5]
    assert link.holds == {}


async def installed() -> tuple[P4RuntimeSwitch, FakeLink]:
    """Return a switch with a job in the groups of `LAGS`, beside the entries of its own."""
    switch, link = connected(lags=LAGS)
    await switch._desired.reconcile(link)  # type: ignore[arg-type]
    await switch.install(in_groups())
    return switch, link


async def next_controller(link: FakeLink, job: Placement) -> tuple[P4RuntimeSwitch, frozenset[int]]:
    """Return another controller's switch with that link, after it has connected, and the jobs that it has lost."""
    switch, _ = connected(lags=LAGS)
    switch._link = link  # type: ignore[assignment]
    switch.expect(job)
    return switch, await switch._desired.reconcile(link)  # type: ignore[arg-type]


def sent_to(link: FakeLink) -> dict[str, set[int]]:
    """Return the ports that the job's group, the hosts and the uplink send to."""
    ports: dict[str, set[int]] = {"group": set(), "host": set(), "uplink": set()}
    for entity in link.holds.values():
        if entity.HasField("packet_replication_engine_entry"):
            group = entity.packet_replication_engine_entry.multicast_group_entry
            if group.multicast_group_id == placement().group:
                ports["group"] |= {one.egress_port or int.from_bytes(one.port, "big") for one in group.replicas}
            continue
        action = fy.P4TableEntry.decode(entity, SCHEMA).action
        for name, what in (("forward", "host"), ("uplink", "uplink")):
            if isinstance(action, fy.Action) and action.name.rpartition(".")[2] == name:
                ports[what].add(action.args["port"])
    return ports


async def test_answers_move_to_another_port_of_the_group_and_stay_there() -> None:
    switch, link = await installed()
    follow, admitted = switch._desired.follow_ports, len(link.holds)
    at_1 = {"group": {1}, "host": {1}, "uplink": {9}}
    at_2 = {"group": {2}, "host": {2}, "uplink": {9}}
    for states, expected in (
        (UP, at_1),
        (UP | {1: "DOWN"}, at_2),
        (UP, at_2),  # a bond may now listen there alone
        ({}, at_2),
        (UP | {2: "NOT_PRESENT", 9: "LOWER_LAYER_DOWN"}, at_1 | {"uplink": {7}}),
        (dict.fromkeys(UP, "DOWN"), at_1 | {"uplink": {7}}),
        (UP | {1: "DOWN", 7: "DOWN"}, at_2 | {"uplink": {8}}),
    ):
        await follow(states)
        assert sent_to(link) == expected, states
        assert len(link.holds) == admitted
    await follow(UP | {1: "DOWN"})
    assert link.writes[-1] == []
    await switch.install(in_groups())
    assert link.writes[-2:] == [[], []]


async def test_a_job_that_begins_is_not_put_at_a_port_that_is_down() -> None:
    switch, link = connected(lags=LAGS)
    await switch._desired.follow_ports(UP | {1: "DOWN", 9: "DOWN"})
    await switch.install(in_groups())
    assert sent_to(link) == {"group": {2}, "host": {2}, "uplink": {7}}


async def test_a_port_that_the_switch_does_not_report_is_not_chosen() -> None:
    """Somebody may have named a port that does not exist. It would never go down, so entries would stay there."""
    switch, link = await installed()
    await switch._desired.follow_ports({1: "DOWN", 7: "DOWN", 8: "UP", 9: "DOWN"})
    assert sent_to(link) == {"group": {1}, "host": {1}, "uplink": {8}}
    await switch._desired.follow_ports({1: "DOWN", 3: "UP"})
    assert sent_to(link) == {"group": {1}, "host": {1}, "uplink": {8}}


def flooded_to(link: FakeLink) -> list[int]:
    groups = [one.packet_replication_engine_entry.multicast_group_entry for one in link.holds.values()]
    [group] = [one for one in groups if one.multicast_group_id == FLOOD_GROUP]
    return [one.egress_port for one in group.replicas]


async def test_a_parent_floods_to_the_port_at_which_it_hears_its_leaf() -> None:
    """It does not choose another one by itself: over two cables, frames would go round."""
    switch, link = connected(lags=LAGS, ports=(1, 3, 7))
    await switch._desired.reconcile(link)  # type: ignore[arg-type]
    follow, flood_to = switch._desired.follow_ports, switch.flood_to
    await flood_to(1)
    assert link.writes[1:] == []
    await follow(UP | {1: "DOWN", 7: "DOWN"})
    assert flooded_to(link) == [1, 3, 8]
    await flood_to(2)
    assert flooded_to(link) == [2, 3, 8]
    await follow(UP | {2: "DOWN", 8: "DOWN"})
    assert flooded_to(link) == [2, 3, 9]
    assert [switch.flooded_port(port) for port in (1, 2, 3, 4, 8)] == [2, 2, 3, 4, 9]
    link.refuse = [SwitchError("busy")]
    with pytest.raises(SwitchError):
        await flood_to(1)
    await flood_to(1)
    assert flooded_to(link) == [1, 3, 9]
    switch._link = None
    with pytest.raises(SwitchUnavailable):
        await flood_to(2)
    await switch._desired.reconcile(link)  # type: ignore[arg-type]
    assert flooded_to(link) == [2, 3, 9]
    await flood_to(5)  # frames are flooded to no port of its group
    assert flooded_to(link) == [2, 3, 9]
    other, _ = connected(lags=LAGS, ports=())
    assert other.flooded_port(1) == 1
    await other.flood_to(1)


async def test_what_the_switch_has_refused_to_move_is_moved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p4reduce_controller.p4runtime.switch.BACKOFF", (0.0,))
    switch, link = await installed()
    switch.ports = UP | {1: "DOWN"}
    link.refuse = [SwitchError("busy")] * 3
    await switch._follow_ports(switch.ports)
    assert sent_to(link) == {"group": {2}, "host": {2}, "uplink": {9}}
    link.refuse = [SwitchError("busy")] * 3
    await switch._follow_ports(UP | {2: "DOWN"})  # the state of another time
    assert len(link.refuse) == 2
    await switch._follow_ports(switch.ports)
    assert not link.refuse


async def test_workers_that_share_a_port_get_their_own_copies_at_the_other() -> None:
    switch, link = connected(lags=LAGS, ports=(1, 2))
    await switch.install(in_groups())
    await switch._desired.follow_ports(UP | {1: "DOWN"})
    groups = [one.packet_replication_engine_entry.multicast_group_entry for one in link.holds.values()]
    [group] = [one for one in groups if one.multicast_group_id == placement().group]
    assert [(one.egress_port, one.instance) for one in group.replicas] == [(2, 1), (2, 2)]


async def test_the_next_controller_keeps_the_ports_that_answers_have_moved_to() -> None:
    """It may learn later than the entries which ports are up. A job is intact, whichever port of a group it has."""
    switch, link = await installed()
    await switch._desired.follow_ports(UP | {1: "DOWN", 9: "DOWN"})
    later, lost = await next_controller(link, in_groups())
    assert not lost
    assert sent_to(link) == {"group": {2}, "host": {2}, "uplink": {7}}
    await later._desired.follow_ports(UP | {2: "DOWN"})
    assert sent_to(link) == {"group": {1}, "host": {1}, "uplink": {7}}
    _, lost = await next_controller(link, in_groups(port=3))
    assert lost == {1}


async def test_a_switch_that_comes_back_gets_ports_that_are_up() -> None:
    """While it was away, one port has gone down."""
    switch, link = await installed()
    switch._link = None
    with pytest.raises(SwitchUnavailable):
        await switch._desired.follow_ports(UP | {1: "DOWN", 9: "DOWN"})
    assert sent_to(link) == {"group": {1}, "host": {1}, "uplink": {9}}
    assert await switch._desired.reconcile(link) == frozenset()  # type: ignore[arg-type]
    assert sent_to(link) == {"group": {2}, "host": {2}, "uplink": {7}}


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries({port: st.sampled_from(["UP", "DOWN"]) for port in (1, 2, 7, 8, 9)}),
            st.sampled_from(["nothing", "gone", "refused", "reconnected", "taken over", "installed again"]),
        ),
        max_size=8,
    )
)
def test_answers_leave_by_a_port_that_is_up_whatever_happens(events: list[tuple[dict[int, str], str]]) -> None:
    asyncio.run(play(events))


async def play(events: list[tuple[dict[int, str], str]]) -> None:
    switch, link = await installed()
    for states, event in events:
        if event == "gone":
            link.refuse = [SwitchUnavailable("gone")]
        if event == "refused":
            link.refuse = [SwitchError("busy")]
        if event == "taken over":
            switch, lost = await next_controller(link, in_groups())
            assert not lost
        if event == "reconnected":
            assert await switch._desired.reconcile(link) == frozenset()  # type: ignore[arg-type]
        if event == "installed again":
            await switch.install(in_groups())
        try:
            await switch._desired.follow_ports(states)
        except SwitchUnavailable:
            assert await switch._desired.reconcile(link) == frozenset()  # type: ignore[arg-type]
        except SwitchError:
            await switch._desired.follow_ports(states)
        link.refuse = []
        for what, group in (("group", LAGS[0]), ("host", LAGS[0]), ("uplink", LAGS[1])):
            [port] = sent_to(link)[what]
            assert port in group
            assert states[port] == "UP" or all(states[one] == "DOWN" for one in group)


def test_a_hello_names_the_group_of_its_port() -> None:
    heard: list[Heard] = []
    switch, _ = connected(lags=((3, 1),))
    switch._listener = SimpleNamespace(on_hello=heard.append)  # type: ignore[assignment]
    for port in (1, 2):
        switch._on_hello(Heard(port, SWITCH, 1, 1, 0, 0))
    assert [one.ports for one in heard] == [(3, 1), (2,)]


async def test_a_fence_that_fails_can_be_tried_again() -> None:
    switch, link = connected()
    await switch.install(placement())
    for error in (SwitchError("busy"), SwitchUnavailable("gone")):
        link.refuse = [error]
        with pytest.raises(type(error)):
            await switch.fence(placement())
    await switch.fence(placement())
    assert link.writes[-1] == [DELETE] * 2


async def test_what_a_refused_installation_may_have_left_is_taken_off() -> None:
    switch, link = connected()
    link.refuse = [SwitchError("table full")]
    with pytest.raises(SwitchError, match="table full"):
        await switch.install(placement())
    await switch.fence(placement())
    await switch.forget(placement())
    assert link.writes == [[INSERT] * 5, [DELETE] * 2, [DELETE] * 3]


async def test_a_job_does_without_its_hosts_being_known() -> None:
    switch, link = connected()
    link.refuse = [None, SwitchError("table full")]
    await switch.install(placement())
    assert link.writes == [[INSERT] * 5, [INSERT] * 2, [DELETE] * 2]


async def test_a_host_that_was_configured_stays_where_it_was_put() -> None:
    switch, link = connected(hosts={"02:00:00:00:00:00": 3})
    await switch.install(placement())
    assert link.writes[1] == [INSERT]


def leaves(job: int, *ports: int) -> Placement:
    """Return a spine's placement of leaves behind these ports. All have the same address, as on one machine."""
    sender = Endpoint("02:00:7f:00:00:01", "127.0.0.1", 31315)
    heard = tuple(Heard(port, sender, job, 1, index, 0) for index, port in enumerate(ports))
    hosts = tuple((sender.mac, port) for port in ports)
    return Placement(job, 1, SlotRange(0, 4), 2, heard, len(ports), hosts=hosts)


async def test_leaves_of_one_mac_address_are_one_host() -> None:
    switch, link = connected()
    before = dict(link.holds)
    await switch.install(leaves(1, 1, 2))
    assert link.writes[1] == [INSERT]
    await switch.fence(leaves(1, 1, 2))
    await switch.forget(leaves(1, 1, 2))
    assert link.writes[3] == [DELETE] * 4  # group, 2 deliveries, the host
    assert link.holds == before


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_leaf_of_the_job_that_stays_is_the_host_of_their_address(restarted: bool) -> None:
    switch, link = connected()
    alone, alone_link = connected()
    await alone.install(leaves(2, 2))
    for job in (leaves(1, 1), leaves(2, 2)):
        if restarted:
            switch.expect(job)
        else:
            await switch.install(job)
    await switch.forget(leaves(1, 1))
    assert link.writes[-1] == [MODIFY]
    if not restarted:
        await switch.fence(leaves(1, 1))
        assert link.holds == alone_link.holds
    await switch.forget(leaves(2, 2))
    assert link.writes[-1] == [DELETE] * 3


async def test_a_loss_rate_is_inserted_changed_and_removed() -> None:
    switch, link = connected()
    for rate in (0.5, 0.25, 0.25, 0.0, 0.0):
        await switch.set_loss(3, "out", rate)
    assert link.writes == [[INSERT], [MODIFY], [], [DELETE], []]
    assert switch.loss_rates == {}
    link.refuse = [SwitchError("table full")]
    with pytest.raises(SwitchError):
        await switch.set_loss(3, "out", 0.5)
    assert switch.loss_rates == {}
    await switch.set_loss(3, "out", 0.5)
    assert link.writes[-1] == [INSERT]
