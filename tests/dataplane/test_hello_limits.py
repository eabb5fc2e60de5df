# SPDX-License-Identifier: Apache-2.0
"""The meter on what ports send to the controller. Without refilling, so that no test depends on time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from finsy.proto import p4r

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.p4runtime import PacketIn
from tests.support.dataplane.switch import HELLOS, SWITCH, Switch

STRANGER = Host("02:00:00:00:00:66", "10.0.0.66", 40066)
RANK = Host("02:00:00:00:00:61", "10.0.0.61", 40001)
OTHER = Host("02:00:00:00:00:62", "10.0.0.62", 31314)
BURST, FLOOD = 20, 400
UNIMPLEMENTED, INVALID = 12, 3


def hello(switch: Switch, sender: Host, to: Host = SWITCH, **fields: int) -> bytes:
    packet = Aggregation(op=frames.HELLO, job=5, generation=3, keys=(0,) * switch.lanes, **fields)
    return frames.frame(sender, to, packet)


@pytest.fixture
def bursting(switch: Switch) -> Switch:
    """Return a switch on which a limit of rate 0 lets its burst pass, and then nothing."""
    if not switch.meters_have_bursts_at_rate_0:
        pytest.skip("the driver of a Tofino lets nothing pass at rate 0")
    return switch


def test_a_flood_at_one_port_leaves_room_for_ranks_at_others(bursting: Switch) -> None:
    bursting.limit_hellos(1, 0, BURST)
    flood, rank = hello(bursting, STRANGER), hello(bursting, RANK)
    outputs = bursting.exchange(*[(1, flood)] * FLOOD, (2, rank))
    outputs.expect(packet_ins=[*[PacketIn(1, 0, flood)] * BURST, PacketIn(2, 0, rank)])
    assert bursting.counts() == {"hello": BURST + 1, "hello_limited": FLOOD - BURST}


def test_every_port_has_its_own_limit(bursting: Switch) -> None:
    for port in (1, 3):
        bursting.limit_hellos(port, 0, port)
    frame = hello(bursting, RANK)
    outputs = bursting.exchange(*[(port, frame) for port in bursting.ports for _ in range(5)])
    heard = [packet.ingress_port for packet in outputs.packet_ins]
    assert heard == [1] + [2] * 5 + [3] * 3 + [4] * 5
    assert bursting.counts() == {"hello": 14, "hello_limited": 6}


def test_other_packets_are_no_hellos(bursting: Switch) -> None:
    """The limit applies to HELLOs alone, and bridged or malformed packets do not use it up."""
    bursting.limit_hellos(1, 0, 1)
    bursting.forward(OTHER.mac, 2)
    bridged = hello(bursting, RANK, OTHER)
    ping = frames.icmp_echo(8, 1, 2, b"x")
    asked = frames.ethernet(RANK.mac, SWITCH.mac, frames.IPV4, frames.ipv4(RANK.ip, SWITCH.ip, frames.ICMP, ping))
    bursting.exchange((1, bridged), (1, bridged)).expect({2: [bridged] * 2})
    bursting.exchange((1, hello(bursting, RANK, version=2))).expect()
    good = hello(bursting, RANK)
    bursting.exchange((1, good), (1, good)).expect(packet_ins=[PacketIn(1, 0, good)])
    assert len(bursting.exchange((1, asked)).ports[1]) == 1
    assert bursting.counts() == {"malformed": 1, "hello": 1, "hello_limited": 1}


def test_a_limit_written_again_begins_anew_and_one_taken_off_is_none(bursting: Switch) -> None:
    frame = hello(bursting, RANK)
    for _ in range(2):
        bursting.limit_hellos(1, 0, 2)
        assert len(bursting.exchange(*[(1, frame)] * 4).packet_ins) == 2
    bursting.client.write_meter(HELLOS, 1, None)
    assert len(bursting.exchange(*[(1, frame)] * 40).packet_ins) == 40


def test_limits_are_read_back(switch: Switch) -> None:
    client = switch.client
    switch.limited_ports |= {2, 511}
    wanted = {2: (5, 6, 7, 8), 511: (1000, 1000, 1000, 1000)}
    for index, config in wanted.items():
        client.write_meter(HELLOS, index, config)
        (found,) = client.read(client.meter_entry(HELLOS, index))
        assert found == client.meter_entry(HELLOS, index, config)
    found = client.read(client.meter_entry(HELLOS, None))
    assert found == [client.meter_entry(HELLOS, index, wanted.get(index)) for index in range(512)]
    every = p4r.Entity()
    every.meter_entry.SetInParent()
    assert client.read(every) == found


def test_what_is_refused(switch: Switch) -> None:
    for kind, index, code in (
        (p4r.Update.INSERT, 1, INVALID),
        (p4r.Update.DELETE, 1, INVALID),
        (p4r.Update.MODIFY, None, UNIMPLEMENTED),
        (p4r.Update.MODIFY, -1, INVALID),
    ):
        assert switch.client.codes(kind, switch.client.meter_entry(HELLOS, index, (1, 1, 1, 1))) == [code]
    no_meter = switch.client.meter_entry(HELLOS, 1, (1, 1, 1, 1))
    no_meter.meter_entry.meter_id ^= 1
    assert switch.client.codes(p4r.Update.MODIFY, no_meter) == [INVALID]


def test_the_leaf_and_the_controller_are_not_limited(switch: Switch) -> None:
    """HELLOs that the switch itself sends out of a port, and answers to the controller, are not limited."""
    switch.limit_hellos(1, 0, 0)
    own = hello(switch, replace(SWITCH), OTHER)
    switch.packet_out(own, through_pipeline=False, egress_port=1).expect({1: [own]})
    switch.reset_halves({3: 5}).expect()
    assert switch.counts() == {"reset": 1}
