# SPDX-License-Identifier: Apache-2.0
"""RESET, QUERY and ABORT from the controller, HELLO to it, and what happens when anyone else tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import NO_KEY, Aggregation, Host
from tests.support.dataplane.jobs import Job, Round, sums, values_of
from tests.support.dataplane.p4runtime import PacketIn
from tests.support.dataplane.switch import CONTROLLER, SWITCH, Switch


def test_reset_is_acknowledged(switch: Switch) -> None:
    packet = Aggregation(op=frames.RESET, job=3, generation=9, slot=17, seq=0xFEDCBA98, keys=(7,) * switch.lanes)
    frame = switch.to_switch(packet)
    switch.packet_out(frame).expect(packet_ins=[PacketIn(switch.cpu_port, 0, frame)])
    state = switch.query(17)
    assert (state.seq, state.bitmap) == (0xFEDCBA98, 0)
    assert switch.counts() == {"reset": 1, "query": 1}


def test_reset_empties_a_half(switch: Switch) -> None:
    job = Job(switch, 2).start()
    Round(job, 2).send(0).expect()
    assert switch.query(job.pool_base).bitmap == 1
    switch.reset_halves({job.pool_base: 2}).expect()
    assert switch.query(job.pool_base).bitmap == 0
    Round(job, 4).run()


def test_reset_touches_one_half(switch: Switch) -> None:
    job = Job(switch, 2, pool_base=8, slots=2).start()
    for seq in (2, 3):
        for slot in range(2):
            switch.exchange(job.data(1, seq, slot=slot, values=values_of(seq + slot, switch, [0]))).expect()
    before = [switch.query(8 + half) for half in range(4)]
    switch.reset_halves({9: 1}).expect()
    after = [switch.query(8 + half) for half in range(4)]
    assert after[1] == replace(before[1], seq=1, bitmap=0)
    assert after[0] == before[0]
    assert after[2:] == before[2:]


def test_query_tells_everything_and_changes_nothing(switch: Switch) -> None:
    job = Job(switch, 3, pool_base=6).start()
    lanes = range(switch.lanes)
    one = Round(job, 3, keys=[[rank * 8 + lane for lane in lanes] for rank in (2, 0, 1)])
    for rank in (1, 2):
        one.send(rank).expect()
    question = Aggregation(
        op=frames.QUERY, active=switch.all_lanes, worker=4, job=5, generation=6, slot=7, keys=(0,) * switch.lanes,
        values=values_of(0, switch, lanes),
    )  # fmt: skip
    held = sums(switch, lanes, *(packet.values for packet in one.packets[1:]))
    answer = replace(question, seq=3, fingerprint=one.packets[1].fingerprint, keys=one.keys, values=held)
    for _ in range(2):
        wanted = PacketIn(switch.cpu_port, 0b110, switch.to_switch(answer))
        switch.packet_out(switch.to_switch(question)).expect(packet_ins=[wanted])
    one.send(0).expect(job.to_all(one.result(0)))


def test_a_bare_query_has_no_room_for_sums(switch: Switch) -> None:
    job = Job(switch, 2).start()
    packet = job.packet(1, 2, values=values_of(1, switch, [0]), keys=(3,) * switch.lanes)
    switch.exchange(job.sent(packet)).expect()
    answer = Aggregation(op=frames.QUERY, seq=2, fingerprint=packet.fingerprint, keys=(3,) * switch.lanes)
    question = switch.to_switch(Aggregation(op=frames.QUERY))
    switch.packet_out(question).expect(packet_ins=[PacketIn(switch.cpu_port, 0b10, switch.to_switch(answer))])
    switch.packet_out(switch.to_switch(Aggregation(op=frames.QUERY, active=1))).expect()
    assert switch.counts() == {"reset": 4, "started": 1, "query": 1, "malformed": 1}


@pytest.mark.parametrize("op", [frames.RESET, frames.QUERY])
def test_halves_that_do_not_exist(switch: Switch, op: int) -> None:
    last = switch.to_switch(Aggregation(op=op, slot=switch.halves - 1))
    assert len(switch.packet_out(last).packet_ins) == 1
    for half in (switch.halves, 0xFFFF):
        switch.packet_out(switch.to_switch(Aggregation(op=op, slot=half))).expect()
    assert switch.counts()["bad_slot"] == 2


def test_abort_goes_to_the_group(switch: Switch) -> None:
    job = Job(switch, 6).start()
    abort = Aggregation(
        op=frames.ABORT, worker=2, job=job.number, generation=job.generation, seq=0xFEDCBA98, fingerprint=0x76543210,
        keys=(42, *[NO_KEY] * (switch.lanes - 1)),
    )  # fmt: skip
    heard: dict[int, list[bytes]] = {}
    for member in job.members:
        to = replace(CONTROLLER, mac=SWITCH.mac), Host(member.host.mac, member.host.ip, member.host.udp_port)
        heard.setdefault(member.port, []).append(frames.frame(*to, abort))
    frame = frames.frame(replace(CONTROLLER, mac=SWITCH.mac), SWITCH, abort)
    switch.packet_out(frame, multicast_group=job.group).expect(heard)
    assert switch.counts() == {"reset": 4}


def test_abort_reaches_a_job_without_entries(switch: Switch) -> None:
    """The controller fences a job first, then tells its workers."""
    job = Job(switch, 2).start()
    switch.delete(*(job.admission(rank) for rank in range(2)))
    abort = Aggregation(op=frames.ABORT, job=job.number, generation=1, keys=(1,) * switch.lanes)
    outputs = switch.packet_out(switch.to_switch(abort), multicast_group=job.group)
    assert {port: len(data) for port, data in outputs.ports.items()} == {1: 1, 2: 1}
    assert not outputs.packet_ins


def test_hello_tells_the_controller_who_is_where(switch: Switch) -> None:
    host = Host("02:00:00:00:00:77", "10.1.2.3", 45678)
    hello = Aggregation(
        op=frames.HELLO, worker=5, job=77, generation=3, fingerprint=0x01234567,
        keys=(0x89ABCDEF, *[NO_KEY] * (switch.lanes - 1)),
    )  # fmt: skip
    frame = frames.frame(host, SWITCH, hello)
    for port in switch.ports:
        switch.exchange((port, frame)).expect(packet_ins=[PacketIn(port, 0, frame)])
    assert switch.counts() == {"hello": len(switch.ports)}


def test_hello_to_someone_else_is_forwarded(switch: Switch) -> None:
    switch.forward("02:00:00:00:00:02", 2)
    other = Host("02:00:00:00:00:02", "10.0.0.2")
    frame = frames.frame(Host("02:00:00:00:00:01", "10.0.0.1"), other, Aggregation(op=frames.HELLO, keys=(0,) * 4))
    switch.exchange((1, frame)).expect({2: [frame]})


@pytest.mark.parametrize("member", [True, False])
def test_workers_may_only_send_data_errors_and_hello(switch: Switch, member: bool) -> None:
    job = Job(switch, 2).start()
    switch.exchange(job.data(1, 2, values=values_of(1, switch, [0]))).expect()
    before = switch.query(job.pool_base)
    forbidden = set(range(16)) - {frames.DATA, frames.ERROR, frames.HELLO}
    for count, op in enumerate(forbidden, 1):
        packet = replace(job.packet(0, 2, values=values_of(2, switch, [0])), op=op)
        port, frame = job.sent(packet)
        switch.exchange((port if member else port + 1, frame)).expect()
        assert switch.counts()["forbidden"] == count, op
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": 4, "started": 1, "forbidden": len(forbidden), "query": 2}


def test_the_controller_may_not_send_the_rest(switch: Switch) -> None:
    """The controller may not send DATA even as a member of a job: it must come from a port."""
    job = Job(switch, 2).start()
    forbidden = set(range(16)) - {frames.RESET, frames.QUERY, frames.ABORT}
    for count, op in enumerate(forbidden, 1):
        _, frame = job.sent(replace(job.packet(0, 2), op=op))
        switch.packet_out(frame).expect()
        assert switch.counts() == {"reset": 4, "forbidden": count}, op


def test_malformed_packets_of_the_controller(switch: Switch) -> None:
    good = switch.to_switch(Aggregation(op=frames.RESET, slot=3, seq=5))
    wrong = switch.to_switch(Aggregation(op=frames.RESET, slot=3, seq=5, version=2))
    switch.packet_out(wrong).expect()
    switch.packet_out(good[:-1]).expect()
    assert switch.counts() == {"malformed": 2}
