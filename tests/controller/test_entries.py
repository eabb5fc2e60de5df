# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a switch's entries stays right when the switch refuses writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import finsy as fy
import pytest
from finsy.proto import p4r

from p4reduce_controller.p4runtime.program import Program, load_schema
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import Heard, Parent, Placement, SwitchError, SwitchUnavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange

SWITCH = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


class FakeLink:
    """A fake link that keeps what is written. The next writes raise the errors in `refuse`, one each."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.holds: dict[bytes, bytes] = {}  # table entries by what they match: their actions
        self.refuse: list[SwitchError | None] = []

    async def write(self, updates: Sequence[p4r.Update], *, missing_ok: bool = False) -> None:
        self.writes.append([update.type for update in updates])
        if any(update.type == DELETE for update in updates):
            assert missing_ok
        if self.refuse and (error := self.refuse.pop(0)):
            raise error
        keys = [self._key(update.entity) for update in updates]
        assert len(set(keys)) == len(keys), "a switch may take the updates of one request in any order"
        for key, update in zip(keys, updates, strict=True):
            assert update.type != INSERT or key not in self.holds
            self.holds[key] = update.entity.table_entry.action.SerializeToString()
            if update.type == DELETE:
                del self.holds[key]

    @staticmethod
    def _key(entity: p4r.Entity) -> bytes:
        key = p4r.Entity()
        key.CopyFrom(entity)
        if key.HasField("table_entry"):
            key.table_entry.ClearField("action")
        else:
            key.packet_replication_engine_entry.multicast_group_entry.ClearField("replicas")
        return key.SerializeToString(deterministic=True)


def connected(**config: Any) -> tuple[P4RuntimeSwitch, FakeLink]:
    switch = P4RuntimeSwitch(SwitchConfig("nowhere", SWITCH, **config), Program(load_schema()))
    link = FakeLink()
    switch._link = link  # type: ignore[assignment]
    return switch, link


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
    program = Program(load_schema())
    workers = {
        entry.match["worker"]: entry.action.args["worker_bit"]
        for entry in program.admissions(replace(placement(), parent=parent))
        if entry.match and isinstance(entry.action, fy.Action)
    }
    assert workers == {0: 1, 1: 2, 31: 1 << 31}


async def test_workers_and_the_parent_are_admitted_at_each_port_of_their_group() -> None:
    """The group of ports 1 and 2 has both workers, and that of 7, 8 and 9 has the parent."""
    parent = Parent(9, Endpoint("02:00:0a:00:00:01", "10.0.0.1", 31314), worker=3)
    switch, link = connected(lags=((1, 2), (7, 8, 9)))
    leaf = replace(placement(), parent=parent)
    await switch.install(leaf)
    assert link.writes[0] == [INSERT] * (4 + 2 * 2 + 3)  # group, 2 deliveries and the uplink; admissions
    keys = [p4r.Entity.FromString(key).table_entry for key in link.holds]
    ports = sorted(int.from_bytes(one.match[0].exact.value, "big") for one in keys if len(one.match) == 6)
    assert ports == [1, 1, 2, 2, 7, 8, 9]
    await switch.fence(leaf)
    await switch.forget(leaf)
    assert link.writes[2:] == [[DELETE] * 7, [DELETE] * 6]
    assert link.holds == {}


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
