# SPDX-License-Identifier: Apache-2.0
"""Losses on purpose: a share of the packets into or out of a port, and a counter that says how many."""

from __future__ import annotations

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.jobs import Job, Round
from tests.support.dataplane.switch import BURST, LOSS_IN, LOSS_OUT, LOSSES_IN, LOSSES_OUT, Switch
from tests.support.waiting import wait_until

ALL = 2**32 - 1
HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)
SAMPLE = 400


@pytest.mark.parametrize("table", [LOSS_IN, LOSS_OUT])
def test_threshold_zero_loses_nothing(switch: Switch, table: str) -> None:
    switch.forward(THERE.mac, 2)
    for port in switch.ports:
        switch.set_loss(table, port, 0)
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.exchange(*[(1, frame)] * 50).expect({2: [frame] * 50})
    assert switch.by_port(LOSSES_IN) == switch.by_port(LOSSES_OUT) == {}


def test_losing_everything_that_comes_in(switch: Switch) -> None:
    switch.forward(THERE.mac, 2)
    switch.forward(HERE.mac, 1)
    entry = switch.set_loss(LOSS_IN, 1, ALL)
    frame = frames.udp_frame(HERE, THERE, b"x")
    for sent in range(1, SAMPLE + 1):
        switch.inject(1, frame)
        if sent % BURST == 0:
            wait_until(lambda sent=sent: switch.by_port(LOSSES_IN) == {1: sent}, f"{sent} frames into port 1 are lost")
    back = frames.udp_frame(THERE, HERE, b"back")
    switch.exchange((2, back)).expect({1: [back]})  # the other direction works
    switch.delete(entry)
    switch.exchange((1, frame)).expect({2: [frame]})
    assert switch.by_port(LOSSES_IN) == {1: SAMPLE}
    assert switch.by_port(LOSSES_OUT) == {}


def test_losing_everything_that_goes_out(switch: Switch) -> None:
    switch.forward(THERE.mac, 2)
    switch.forward(HERE.mac, 1)
    entry = switch.set_loss(LOSS_OUT, 2, ALL)
    switch.deaf_ports = {2}
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.exchange(*[(1, frame)] * 40).expect()
    back = frames.udp_frame(THERE, HERE, b"back")
    switch.exchange((2, back)).expect({1: [back]})
    switch.delete(entry)
    switch.deaf_ports = set()
    switch.exchange((1, frame)).expect({2: [frame]})
    # The harness's sentinels were lost as well: three flooded from port 1, one answered to port 2.
    assert switch.by_port(LOSSES_OUT) == {2: 44}
    assert switch.by_port(LOSSES_IN) == {}


def test_a_lost_result_is_asked_for_again(switch: Switch) -> None:
    """The answer to one worker is lost on its way out; the others have it, and a retransmission brings it back."""
    job = Job(switch, 3).start()
    one = Round(job)
    port = job.members[1].port
    entry = switch.set_loss(LOSS_OUT, port, ALL)
    switch.deaf_ports = {port}
    for rank in (0, 1):
        one.send(rank).expect()
    wanted = job.to_all(one.result(2))
    del wanted[port]
    one.send(2).expect(wanted)
    switch.delete(entry)
    switch.deaf_ports = set()
    one.replay(1)


def test_packets_of_the_controller_may_be_lost_on_their_way_out_only(switch: Switch) -> None:
    switch.set_loss(LOSS_OUT, 3, ALL)
    switch.deaf_ports = {3}
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.packet_out(frame, through_pipeline=False, egress_port=3).expect()
    switch.packet_out(frame, through_pipeline=False, egress_port=4).expect({4: [frame]})


def test_nothing_is_lost_on_the_way_to_the_controller(switch: Switch) -> None:
    """This holds even if the CPU port gets a loss rate by mistake. The harness's own HELLOs prove it."""
    for table in (LOSS_IN, LOSS_OUT):
        switch.set_loss(table, switch.cpu_port, ALL)
    assert switch.query(0).bitmap == 0
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.packet_out(frame, through_pipeline=False, egress_port=4).expect({4: [frame]})


@pytest.mark.parametrize(("table", "counter"), [(LOSS_IN, LOSSES_IN), (LOSS_OUT, LOSSES_OUT)])
def test_a_share_of_the_packets(switch: Switch, table: str, counter: str) -> None:
    """0.3 of 400: between 70 and 170, which is more than five standard deviations to each side."""
    switch.forward(THERE.mac, 2)
    switch.forward(HERE.mac, 1)
    lossy = 1 if table == LOSS_IN else 2
    entry = switch.set_loss(table, lossy, round(0.3 * 2**32))
    frame = frames.udp_frame(HERE, THERE, b"x")
    arrived = 0

    def all_there() -> bool:
        """Return whether every frame has come out or was counted, because sentinels at the lossy port might be lost."""
        nonlocal arrived
        arrived += len(switch.drain(2, frame))
        return arrived + switch.by_port(counter).get(lossy, 0) == sent

    for sent in range(1, SAMPLE + 1):
        switch.inject(1, frame)
        if sent % BURST == 0:
            wait_until(all_there, f"{sent} frames have come out or were counted as lost")
    wait_until(all_there, f"{SAMPLE} frames have come out or were counted as lost")
    switch.delete(entry)
    lost = switch.by_port(counter)
    assert list(lost) == [lossy]
    assert 70 < lost[lossy] < 170
    assert arrived == SAMPLE - lost[lossy]
