# SPDX-License-Identifier: Apache-2.0
"""Only the members of a job reach its slots, and only as long as they are members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.jobs import Job, values_of
from tests.support.dataplane.switch import SWITCH, Switch

WRONG: dict[str, Callable[[Host, Aggregation, int], tuple[Host, Aggregation, int]]] = {
    "port": lambda host, packet, port: (host, packet, port + 1),
    "ip": lambda host, packet, port: (replace(host, ip="10.7.0.99"), packet, port),
    "udp_port": lambda host, packet, port: (replace(host, udp_port=host.udp_port + 1), packet, port),
    "job": lambda host, packet, port: (host, replace(packet, job=packet.job + 1), port),
    "older_generation": lambda host, packet, port: (host, replace(packet, generation=packet.generation - 1), port),
    "newer_generation": lambda host, packet, port: (host, replace(packet, generation=packet.generation + 1), port),
    "another_worker": lambda host, packet, port: (host, replace(packet, worker=packet.worker + 1), port),
    "no_such_worker": lambda host, packet, port: (host, replace(packet, worker=200), port),
}


def test_anyone_else_is_dropped(switch: Switch) -> None:
    job = Job(switch, 3).start()
    switch.exchange(job.data(2, 2, values=values_of(1, switch, [0]))).expect()
    before = switch.query(job.pool_base)
    member = job.members[0]
    for count, (wrong, change) in enumerate(WRONG.items(), 1):
        host, packet, port = change(member.host, job.packet(0, 2, values=values_of(2, switch, [0])), member.port)
        switch.exchange((port, frames.frame(host, SWITCH, packet))).expect()
        assert switch.counts()["not_admitted"] == count, wrong
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": 4, "started": 1, "not_admitted": len(WRONG), "query": 2}


def test_the_mac_address_does_not_matter(switch: Switch) -> None:
    """A router on the way changes it; an answer to one goes back to where the question came from."""
    job = Job(switch, 2).start()
    packet = job.packet(0, 2)
    routed = replace(job.members[0].host, mac="02:aa:00:00:00:aa")
    switch.exchange(job.sent(packet)).expect()
    status = frames.frame(SWITCH, routed, job.status(packet, 1))
    switch.exchange((1, frames.frame(routed, SWITCH, packet))).expect({1: [status]})


def test_removing_the_entries_fences_the_job(switch: Switch) -> None:
    job = Job(switch, 2).start()
    switch.exchange(job.data(0, 2, values=values_of(1, switch, [0]))).expect()
    before = switch.query(job.pool_base)
    switch.delete(job.admission(0), job.admission(1))
    for rank in range(2):
        for seq in (2, 4):
            switch.exchange(job.data(rank, seq, values=values_of(2, switch, [0]))).expect()
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": 4, "started": 1, "not_admitted": 4, "query": 2}


def test_the_former_generation_of_a_job_is_fenced(switch: Switch) -> None:
    former = Job(switch, 2, generation=1).start()
    switch.exchange(former.data(0, 2, values=values_of(1, switch, [0]))).expect()
    switch.delete(*(former.admission(rank) for rank in range(2)), *(former.delivery(rank) for rank in range(2)))
    latter = Job(switch, 2, generation=2)
    switch.insert(*map(latter.admission, range(2)), *map(latter.delivery, range(2)))
    latter.reset().expect()
    first, last = latter.packet(0, 2), latter.packet(1, 2)
    switch.exchange(former.data(1, 2, values=values_of(2, switch, [0]))).expect()
    switch.exchange(latter.sent(first)).expect()
    switch.exchange(former.data(1, 2, values=values_of(2, switch, [0]))).expect()
    switch.exchange(latter.sent(last)).expect(latter.to_all(latter.result(last, keys=last.keys, values={})))
    assert switch.counts()["not_admitted"] == 2
