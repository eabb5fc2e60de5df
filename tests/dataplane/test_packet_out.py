# SPDX-License-Identifier: Apache-2.0
"""Frames that the controller sends: out of a port as they are, or through the switch as if they had come in."""

from __future__ import annotations

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.switch import SWITCH, Switch

HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)


def test_out_of_a_port_untouched(switch: Switch) -> None:
    contents = [
        frames.udp_frame(HERE, THERE, b"from the controller"),
        frames.udp_frame(HERE, THERE, b"wrong checksum", wrong_checksum=0x1111),
        frames.arp(1, HERE, Host("00:00:00:00:00:00", SWITCH.ip)),
        switch.to_switch(Aggregation(op=frames.RESET, slot=1)),
        frames.ethernet(HERE.mac, frames.BROADCAST, 0x88CC, bytes(20)),
    ]
    for port in switch.ports:
        for frame in contents:
            switch.packet_out(frame, through_pipeline=False, egress_port=port).expect({port: [frame]})
    assert switch.counts() == {}


def test_through_the_pipeline_is_bridged(switch: Switch) -> None:
    switch.forward(THERE.mac, 3)
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.packet_out(frame, egress_port=1).expect({3: [frame]})


def test_through_the_pipeline_is_flooded_to_every_port(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.packet_out(frame).expect({port: [frame] for port in switch.ports})


def test_the_controller_may_send_a_frame_with_a_priority_tag(switch: Switch) -> None:
    """A worker's frame with the tag of VLAN 0 is dropped as a forgery; the controller's is forwarded."""
    switch.forward(THERE.mac, 3)
    typed = frames.udp_frame(HERE, THERE, b"x")[12:]
    tagged = frames.ethernet(HERE.mac, THERE.mac, 0x8100, bytes(2) + typed)
    switch.exchange((2, tagged)).expect()
    outputs = switch.packet_out(tagged, egress_port=1)
    assert [frame.endswith(typed) for frame in outputs.ports[3]] == [True]  # the kernel may take a tag off


def test_in_order(switch: Switch) -> None:
    contents = [frames.udp_frame(HERE, THERE, bytes([number])) for number in range(40)]
    for frame in contents[:-1]:
        switch.client.packet_out(frame, through_pipeline=False, egress_port=2)
    outputs = switch.packet_out(contents[-1], through_pipeline=False, egress_port=2)
    assert outputs.ports == {2: contents}
