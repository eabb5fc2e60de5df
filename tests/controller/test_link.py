# SPDX-License-Identifier: Apache-2.0
"""A connection to a P4Runtime server that does not answer, or goes away in the middle of a call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import pytest
from finsy import p4client
from finsy.proto import p4r

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.effects import Tell
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.p4runtime import link as link_module
from p4reduce_controller.p4runtime import switch as switch_module
from p4reduce_controller.p4runtime.link import Link, switch_channel
from p4reduce_controller.p4runtime.port_watch import NO_GNMI, watch_ports
from p4reduce_controller.p4runtime.program import Program
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.service.streams import Stream
from p4reduce_controller.switches.aggregator import Heard, Placement, SwitchUnavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange
from tests.support.controller.p4runtime_server import AT, DEADLINE, Ear, Server, serving, until


async def test_what_waits_when_a_connection_is_closed_hears_that_the_switch_is_away() -> None:
    """The caller is not cancelled, as gRPC itself would have it."""

    async def read(link: Link, program: Program) -> None:
        async for _ in link.read([program.counter("outcomes")]):
            pass

    async with serving() as (server, address):
        program = Program(server.schema)
        link = Link(address, 1, server.schema, lambda *_: None)
        await link.look()
        assert not await link.become_primary(1)
        server.hangs = {"write", "read"}
        update = p4r.Update(type=p4r.Update.INSERT, entity=program.host(AT.mac, 1).encode(server.schema))
        calls = [asyncio.create_task(link.write([update])), asyncio.create_task(read(link, program))]
        calls.append(asyncio.create_task(link.run()))
        for _ in range(2):
            await asyncio.wait_for(server.asked.get(), DEADLINE)
        await link.close()
        for call in calls:
            with pytest.raises(SwitchUnavailable, match="the connection was closed"):
                await asyncio.wait_for(call, DEADLINE)
        with pytest.raises(SwitchUnavailable, match="a write failed: the connection is closed"):
            await link.write([update])


@pytest.mark.parametrize("what", ["read", "write"])
def test_what_begins_as_the_connection_closes_hears_that_the_switch_is_away(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def work() -> None:
        async with serving() as (server, address):
            link = Link(address, 1, server.schema, lambda *_: None)
            await link.look()

            async def closed_meanwhile(asked: Coroutine[Any, Any, object]) -> object:
                await link.close()
                return await asked

            monkeypatch.setattr(link_module, "isolate_cancellation", closed_meanwhile)
            outcomes = Program(server.schema).counter("outcomes")
            asking = link.write([p4r.Update()]) if what == "write" else anext(link.read([outcomes]))
            with pytest.raises(SwitchUnavailable, match=f"a {what} failed: the connection is closed"):
                await asking

    asyncio.run(work())


async def test_a_web_proxy_is_not_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where there is none
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with serving() as (server, address):
        link = Link(address, 1, server.schema, lambda *_: None)
        assert not (await link.look()).has_primary
        await link.close()
        async with switch_channel(address, None) as channel:  # as its ports are asked for
            assert await watch_ports(channel, lambda _: None) == NO_GNMI


async def test_a_program_may_take_longer_to_install_than_an_answer_may(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blank(Server):
        async def GetForwardingPipelineConfig(self, *_: Any) -> p4r.GetForwardingPipelineConfigResponse:
            return p4r.GetForwardingPipelineConfigResponse()

        async def SetForwardingPipelineConfig(
            self, request: p4r.SetForwardingPipelineConfigRequest, context: Any
        ) -> p4r.SetForwardingPipelineConfigResponse:
            assert request.election_id.low == 1
            assert context.time_remaining() > p4client._DEFAULT_RPC_TIMEOUT or self.hangs
            await self._answer("set")
            return p4r.SetForwardingPipelineConfigResponse()

    async with serving(Blank()) as (server, address):
        link = Link(address, 1, server.schema, lambda *_: None)
        await link.look()
        assert await link.become_primary(1)
        await link.close()
        monkeypatch.setattr(link_module, "_INSTALL_TIMEOUT", 0.5)
        server.hangs = {"set"}
        link = Link(address, 1, server.schema, lambda *_: None)
        await link.look()
        with pytest.raises(SwitchUnavailable, match="installing the pipeline failed: no answer in time"):
            await link.become_primary(1)
        await link.close()


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async with serving() as (server, address):
        link = Link(address, 1, server.schema, lambda *_: None)
        await link.look()
        await link.become_primary(1)
        running = asyncio.create_task(link.run())
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await link.close()


async def test_a_switch_that_goes_away_in_the_middle_of_an_installation_costs_the_job_and_no_slots() -> None:
    async with serving() as (server, address):
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        inventory = Inventory([switch])
        jobs = Jobs(inventory)
        controller = Controller(inventory, jobs, ServiceConfig())
        await switch.start(controller.listener(0), DEADLINE)
        while not server.asked.empty():
            server.asked.get_nowait()
        server.hangs = {"write"}
        [job] = start_a_job(controller, jobs)
        await asyncio.wait_for(server.asked.get(), DEADLINE)
        assert job.state is State.INSTALLING
        server.hangs = set()
        server.drop.set()  # the stream ends, and the link is closed
        await until(lambda: job.state is State.ABORTED)
        await until(lambda: jobs.pools[0].used == 0)
        assert server.connections > 1
        await controller.close()
        await switch.close()


def start_a_job(controller: Controller, jobs: Jobs) -> list[Any]:
    """Start a job of one rank, let the switch hear it, and return all jobs."""
    session = Stream(None, lambda *_: None)  # type: ignore[arg-type]
    jobs.join(session, pb.Join(job="job", rank=0, world_size=1, slots=4), 0.0)
    [assigned] = [one.message.assigned for one in jobs.take_effects() if isinstance(one, Tell)]
    sender = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000)
    controller.listener(0).on_hello(Heard(1, sender, assigned.job, assigned.generation, 0, assigned.hello_nonce))
    return list(jobs)


async def test_a_write_that_is_not_answered_breaks_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch's entries are unknown after that, so the controller reads them again."""
    async with serving() as (server, address):
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        await switch.start(Ear(), DEADLINE)
        monkeypatch.setattr(p4client, "_DEFAULT_RPC_TIMEOUT", 0.3)
        server.hangs = {"write"}
        worker = Heard(1, Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000), 1, 1, 0, 0)
        with pytest.raises(SwitchUnavailable, match="a write failed: no answer in time"):
            await switch.install(Placement(1, 1, SlotRange(0, 4), 2, (worker,)))
        await until(lambda: switch.unavailable)
        monkeypatch.undo()
        server.hangs = set()
        await until(lambda: not switch.unavailable)
        assert server.connections > 1
        await switch.close()


async def test_a_write_that_is_cancelled_breaks_the_connection() -> None:
    async with serving() as (server, address):
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        await switch.start(Ear(), DEADLINE)
        while not server.asked.empty():
            server.asked.get_nowait()
        server.hangs = {"write"}
        worker = Heard(1, Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000), 1, 1, 0, 0)
        writing = asyncio.create_task(switch.install(Placement(1, 1, SlotRange(0, 4), 2, (worker,))))
        await asyncio.wait_for(server.asked.get(), DEADLINE)
        writing.cancel()
        await until(lambda: switch.unavailable)
        server.hangs = set()
        await until(lambda: not switch.unavailable)
        await switch.close()


async def test_a_switch_that_hangs_is_noticed_though_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p4client, "_DEFAULT_RPC_TIMEOUT", 0.3)
    monkeypatch.setattr(link_module, "_HEARTBEAT_INTERVAL", 0.1)
    monkeypatch.setattr(switch_module, "SHORT_BREAK", 60.0)
    async with serving() as (server, address):
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        await switch.start(Ear(), DEADLINE)
        server.hangs = {"cookie"}
        await until(lambda: switch.unavailable)
        assert re.fullmatch(r"unreachable for \d+ s", switch.unavailable.summary)
        assert switch.unavailable.brief
        monkeypatch.setattr(switch_module, "SHORT_BREAK", 0.3)
        await until(lambda: switch.unavailable is not None and not switch.unavailable.brief)
        assert str(switch.unavailable).startswith("unreachable for ")
        server.hangs = set()
        await until(lambda: switch.unavailable is None)
        await switch.close()


async def test_a_failure_that_nobody_expected_costs_a_connection_and_no_more() -> None:
    async with serving() as (server, address):
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        await switch.start(Ear(fails=True), DEADLINE)
        await until(lambda: server.connections == 2 and not switch.unavailable)
        await switch.close()
