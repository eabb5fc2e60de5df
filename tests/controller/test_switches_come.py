# SPDX-License-Identifier: Apache-2.0
"""Switches that run the program come to a controller, and leave it as if it had never been there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.client import Assigned
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.fabric import fabric
from p4reduce_controller.service.run import running as a_controller
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.frames import Endpoint, build
from tests.support.controller.bench import SWITCH, host
from tests.support.controller.ranks import Rank, hello_packet, ready
from tests.support.controller.running import Loop
from tests.support.dataplane.targets import PORTS, TARGETS, Target, Unavailable
from tests.support.waiting import wait_until

OTHER = Endpoint("02:00:0a:00:00:fd", "10.0.0.253", 31314)


@pytest.fixture(
    params=["sim", "native", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root, pytest.mark.slow])]
)
def targets(request: pytest.FixtureRequest) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        try:
            made = [stack.enter_context(TARGETS[request.param]()) for _ in range(2)]
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield made


def test_a_switch_comes_and_goes(loop: Loop, targets: list[Target], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "ADD_TIMEOUT", 20.0)  # a busy machine may take longer than 3 s to install the program
    options = {"switch": [targets[0].grpc_address], "address": [SWITCH.ip], "listen": "127.0.0.1:0"}
    options |= {"ports": list(range(1, PORTS + 1)), "mac": [SWITCH.mac]}
    whole = a_controller(load(None, options), 20.0)
    controller = loop.run(whole.__aenter__())
    stub = rpc.JobsStub(open_grpc_channel(controller.service.address))
    ranks: list[Rank] = []
    addresses = dict(zip([SWITCH.ip, OTHER.ip], zip(targets, [SWITCH, OTHER], strict=True), strict=True))

    def hello(assigned: Assigned) -> None:
        for aggregator in assigned.aggregators:
            target, address = addresses[aggregator.ip]
            frame = build(hello_packet(assigned), host(1 + assigned.worker), address)
            target.sockets[1 + assigned.worker].send(frame)

    def job(name: str) -> list[Rank]:
        ranks.extend(Rank(controller.service.address, rank, 2, send_hello=hello, job=name) for rank in range(2))
        ready(ranks[-2:])
        return ranks[-2:]

    def used() -> list[int]:
        return [one.slots_used for one in loop.run(controller.status()).switches]

    try:
        first = job("first")
        one = {"name": "other", "switch": targets[1].grpc_address, "address": [OTHER.ip], "mac": [OTHER.mac]}
        one["ports"] = list(range(1, PORTS + 1))
        assert list(stub.AddSwitch(pb.AddSwitchRequest(settings=json.dumps(one)), timeout=20).said) == [
            "the switch other is added"
        ]
        second = job("second")
        assert used() == [6, 2]
        halves = stub.Slots(pb.SlotsRequest(job="second"), timeout=20).halves
        assert [(half.slot, half.half, half.switch, half.at, half.round) for half in halves if half.half] == [
            (0, 1, targets[0].grpc_address, 4, -1),
            (1, 1, "other", 0, -1),
            (2, 1, targets[0].grpc_address, 5, -1),
            (3, 1, "other", 1, -1),
        ]
        stub.DrainSwitch(pb.DrainSwitchRequest(name="other"), timeout=20)
        third = job("third")
        assert used() == [10, 2]
        stub.RemoveSwitch(pb.RemoveSwitchRequest(name="other", now=True), timeout=20)
        wait_until(lambda: all(rank.session.aborted for rank in second), "the ranks to hear of it")
        assert "its switch other was removed by an operator" in str(second[0].session.aborted)
        wait_until(lambda: used() == [8], "it to be gone")
        assert [rank.session.aborted for rank in [*first, *third]] == [None] * 4
        # Another controller finds it free, and of nobody.
        options |= {"switch": [targets[1].grpc_address], "address": [OTHER.ip], "mac": [OTHER.mac]}
        next_one = a_controller(load(None, options), 20.0)
        service_there = loop.run(next_one.__aenter__())
        try:
            [there] = loop.run(service_there.status()).switches
            assert (there.state, there.slots_used) == ("Ready", 0)
        finally:
            loop.run(next_one.__aexit__(None, None, None))
    finally:
        for rank in ranks:
            rank.session.close()
        loop.run(whole.__aexit__(None, None, None))
