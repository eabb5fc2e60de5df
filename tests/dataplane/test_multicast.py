# SPDX-License-Identifier: Apache-2.0
"""Answers are addressed to each worker as if a host of the switch's address had sent them."""

from __future__ import annotations

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.jobs import Job, Member, Round, values_of
from tests.support.dataplane.switch import SWITCH, Switch


def test_workers_behind_one_port_and_one_address(switch: Switch) -> None:
    """Workers differ by UDP port alone, as they do if all ranks run on one host."""
    job = Job(switch, 3)
    host = job.members[0].host
    job.members = [Member(2, Host(host.mac, host.ip, 50000 + rank)) for rank in range(3)]
    job.start()
    one = Round(job).run()
    assert len(job.to_all(one.result(2))[2]) == 3


def test_a_checksum_sent_is_not_sent_back(switch: Switch) -> None:
    """The switch changes the datagram, so a UDP checksum that came with it would be wrong."""
    job = Job(switch, 1).start()
    packet = job.packet(0, 2, values=values_of(1, switch, [0]))
    member = job.members[0]
    datagram = frames.udp(member.host.udp_port, frames.AGGREGATION_PORT, packet.pack(), sum_=0x1234)
    ip = frames.ipv4(member.host.ip, SWITCH.ip, frames.UDP, datagram)
    data = frames.ethernet(member.host.mac, SWITCH.mac, frames.IPV4, ip)
    result = job.result(packet, keys=packet.keys, values=packet.values)
    switch.exchange((member.port, data)).expect(job.to_all(result))


@pytest.mark.parametrize("ttl", [1, 255])
def test_answers_start_with_a_full_ttl(switch: Switch, ttl: int) -> None:
    job = Job(switch, 2).start()
    packet = job.packet(0, 2)
    member = job.members[0]
    data = frames.frame(member.host, SWITCH, packet, ttl=ttl)
    switch.exchange((member.port, data)).expect()
    switch.exchange((member.port, data)).expect(job.to_one(0, job.status(packet, 1)))
    other = job.packet(1, 2)
    data = frames.frame(job.members[1].host, SWITCH, other, ttl=ttl)
    switch.exchange((job.members[1].port, data)).expect(job.to_all(job.result(other, keys=other.keys, values={})))
