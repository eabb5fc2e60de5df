# SPDX-License-Identifier: Apache-2.0
"""Answers are addressed to each worker as if a host of the switch's address had sent them."""

from __future__ import annotations

import struct

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.jobs import Job, Member, values_of
from tests.support.dataplane.switch import SWITCH, Switch


def check_headers(data: bytes, to: Host, payload_length: int) -> None:
    assert data[:6] == frames.mac_bytes(to.mac)
    assert data[6:12] == frames.mac_bytes(SWITCH.mac)
    ip = data[14:34]
    assert frames.checksum(ip) == 0
    assert int.from_bytes(ip[2:4], "big") == 28 + payload_length == len(data) - 14
    assert ip[8] == 64
    assert ip[12:16] == frames.ip_bytes(SWITCH.ip)
    assert ip[16:20] == frames.ip_bytes(to.ip)
    source, destination, length, checksum = struct.unpack_from("!HHHH", data, 34)
    assert (source, destination) == (frames.AGGREGATION_PORT, to.udp_port)
    assert (length, checksum) == (8 + payload_length, 0)


def test_each_worker_gets_its_own_addresses(switch: Switch) -> None:
    """Said once more, field by field; the other tests compare whole frames."""
    job = Job(switch, 6).start()
    values = values_of(1, switch, [0])
    for rank in range(5):
        switch.exchange(job.data(rank, 2, values=values)).expect()
    outputs = switch.exchange(job.data(5, 2, values=values))
    heard = [(port, data) for port, datas in outputs.ports.items() for data in datas]
    assert len(heard) == 6
    for member in job.members:
        own = [d for port, d in heard if port == member.port and d[:6] == frames.mac_bytes(member.host.mac)]
        assert len(own) == 1
        check_headers(own[0], member.host, 18 + 4 * switch.lanes + 4 * switch.block_size)


def test_status_and_error_are_addressed_too(switch: Switch) -> None:
    job = Job(switch, 2).start()
    bare = 18 + 4 * switch.lanes
    packet = job.data(0, 2, values=values_of(1, switch, [0]))
    switch.exchange(packet).expect()
    outputs = switch.exchange(packet)
    check_headers(outputs.ports[1][0], job.members[0].host, bare)
    outputs = switch.exchange(job.data(1, 2, fingerprint=0x100))
    for member in job.members:
        check_headers(outputs.ports[member.port][0], member.host, bare)


def test_workers_behind_one_port_and_one_address(switch: Switch) -> None:
    """Workers are told apart by UDP port alone, as where all ranks run on one host."""
    job = Job(switch, 3)
    host = job.members[0].host
    job.members = [Member(2, Host(host.mac, host.ip, 50000 + rank)) for rank in range(3)]
    job.start()
    packets = [job.packet(rank, 2, values=values_of(rank, switch, [0])) for rank in range(3)]
    total = {0: packets[0].values[0] + packets[1].values[0] + packets[2].values[0]}
    switch.exchange(job.sent(packets[0]), job.sent(packets[1])).expect()
    result = job.result(packets[2], keys=packets[2].keys, values=total)
    wanted = job.to_all(result)
    assert len(wanted[2]) == 3
    switch.exchange(job.sent(packets[2])).expect(wanted)


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


@pytest.mark.parametrize("ttl", [1, 2, 255])
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
