# SPDX-License-Identifier: Apache-2.0
"""Several controllers, or other P4Runtime clients, at one switch: nobody is hurt by who only comes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4r, p4r_grpc

from p4reduce.control.grpc_channels import open_aio_channel
from p4reduce_controller.base.listening import ListenError
from p4reduce_controller.p4runtime.election import DEFAULT_RANK, Election, in_words
from p4reduce_controller.p4runtime.link import Link, MastershipState
from p4reduce_controller.p4runtime.program import Program
from p4reduce_controller.p4runtime.switch import P4RuntimeSwitch
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service.run import running
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import Superseded
from tests.support.controller.bench import SWITCH, Bench
from tests.support.controller.p4runtime_server import AT, Ear, Server, serving, until
from tests.support.controller.ranks import DEADLINE, Rank
from tests.support.controller.running import Loop
from tests.support.dataplane.targets import PORTS, TARGETS, Target
from tests.support.p4runtime_shell import shell_python
from tests.support.waiting import wait_until

SHELL = Path(__file__).with_name("shell_looks.py")


def state(bench: Bench) -> str:
    text: str = bench.look().switches[0].state
    return text


def is_not_primary(switch: P4RuntimeSwitch) -> bool:
    return switch.unavailable is not None and switch.unavailable.summary == "not primary"


def refused(bench: Bench, **options: Any) -> Exception:
    """Return the error with which another controller on the same switch fails to start."""
    ports = list(range(1, PORTS + 1))
    settings = {"switch": bench.target.grpc_address, "listen": "127.0.0.1:0", "address": [SWITCH.ip], "ports": ports}

    async def start() -> None:
        async with running(load(None, settings | options), 10.0):
            raise AssertionError("it has started")

    with pytest.raises(Exception) as error:
        bench.loop.run(start())
    return error.value


def unharmed(ranks: list[Rank]) -> bool:
    return [rank.session.aborted for rank in ranks] == [None] * len(ranks)


# --- controllers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"election_id": DEFAULT_RANK + 1}], ids=["as it is", "of a higher rank"])
def test_a_second_controller_does_not_start_and_says_what_to_do(bench: Bench, options: dict[str, int]) -> None:
    ranks, assigned = bench.job(2)
    error = refused(bench, **options)
    assert isinstance(error, Superseded)
    own = in_words(bench.switch._own_id)
    assert own.startswith(f"{DEFAULT_RANK},")
    assert f"another controller, with election id {own}, is the primary of the switch at" in str(error)
    assert "nothing was changed; end that one, or give --take-over" in str(error)
    assert state(bench) == "Ready"
    bench.round(assigned)
    assert unharmed(ranks)


def test_one_switch_of_another_controller_keeps_it_from_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, assigned = bench.job(2)

    async def become_primary(*_: object) -> bool:
        raise AssertionError("it became primary")

    with TARGETS["sim"]() as free, monkeypatch.context() as patch:
        patch.setattr(Link, "become_primary", become_primary)
        both = [free.grpc_address, bench.target.grpc_address]
        error = refused(bench, switch=both, address=["10.0.0.253", SWITCH.ip])
        assert isinstance(error, Superseded)
        assert bench.target.grpc_address in str(error)
    bench.round(assigned)
    assert unharmed(ranks)


@pytest.mark.parametrize("taken", ["listen", "metrics"])
def test_a_controller_whose_port_is_taken_touches_no_switch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    ranks, assigned = bench.job(2)

    async def look(_: Link) -> MastershipState:
        raise AssertionError("a switch was asked")

    with socket.create_server(("127.0.0.1", 0)) as there, monkeypatch.context() as patch:
        patch.setattr(Link, "look", look)
        port = f"127.0.0.1:{there.getsockname()[1]}"
        assert isinstance(refused(bench, take_over=True, **{taken: port}), ListenError | OSError)
    bench.round(assigned)
    assert unharmed(ranks)


def test_who_is_taken_over_stands_by_until_the_other_has_gone(loop: Loop, target: Target, bench: Bench) -> None:
    older = bench
    ranks, _ = older.job(2)
    newer = Bench(loop, target, take_over=True)
    try:
        wait_until(lambda: state(older) == "NotReady", "the older one to notice")
        [switch] = older.look().switches
        assert switch.problem.startswith("not primary: ")
        assert f"another controller, with election id {in_words(newer.switch._own_id)}," in switch.problem
        # The client knows nothing of the jobs, and these are as they were.
        assert unharmed(ranks)
        assert [job.state for job in older.look().jobs] == ["ready"]
        assert not older.controller.failed.is_set()
        newer.round(newer.job(2)[1])
        assert state(newer) == "Ready"  # it is not taken back
    finally:
        newer.close()
    wait_until(lambda: state(older) == "Ready", "the older one to be primary again")
    # The newer one has cleared what it did not know.
    wait_until(lambda: all(rank.aborted_at for rank in ranks), "its job to be found lost")
    assert "still runs, but lacks entries of the job" in str(ranks[0].session.aborted)
    older.round(older.job(2)[1])


def test_two_that_may_take_over_do_so_once(loop: Loop, target: Target) -> None:
    one = Bench(loop, target, take_over=True)
    two = Bench(loop, target, take_over=True)
    try:
        wait_until(lambda: state(one) == "NotReady", "the first to notice")
        first = two.switch._own_id
        loop.run(asyncio.sleep(0.5))
        assert (state(one), state(two)) == ("NotReady", "Ready")
        assert two.switch._own_id == first
    finally:
        one.close()  # takes nothing of the other's away
        two.round(two.job(2)[1])
        two.close()


# --- other clients ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stranger(target: Target, election_id: int) -> AsyncIterator[Any]:
    """Yield the stream of a client with that election id, which changes nothing."""
    async with open_aio_channel(target.grpc_address) as channel:
        stream = p4r_grpc.P4RuntimeStub(channel).StreamChannel()  # type: ignore[no-untyped-call]
        request = p4r.StreamMessageRequest()
        request.arbitration.device_id = 1
        request.arbitration.election_id.high, request.arbitration.election_id.low = divmod(election_id, 1 << 64)
        await stream.write(request)
        yield stream


def test_a_client_that_was_primary_for_a_while_costs_no_job(loop: Loop, target: Target, bench: Bench) -> None:
    ranks, assigned = bench.job(2)

    async def pass_by() -> None:
        async with stranger(target, (1 << 128) - 2) as stream:
            assert (await stream.read()).arbitration.status.code == 0
            await until(lambda: is_not_primary(bench.switch))

    loop.run(pass_by())
    bench.round(assigned)
    wait_until(lambda: state(bench) == "Ready", "to be primary again")
    bench.round(assigned, slot=1)
    assert unharmed(ranks)
    bench.round(bench.job(2, job="another")[1])


@contextmanager
def shell(target: Target) -> Iterator[subprocess.Popen[str]]:
    command = [shell_python(), str(SHELL), target.grpc_address]
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_p4runtime_shell_as_most_would_start_it_only_looks(target: Target, bench: Bench) -> None:
    ranks, assigned = bench.job(2)
    with shell(target) as process:
        assert process.stdin is not None
        assert "You are not the primary client" in process.stdout.readline()
        assert process.stdout.readline() == "set up\n"
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "2\n"
        assert state(bench) == "Ready"
        bench.round(assigned)
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
    assert unharmed(ranks)


# --- ids -------------------------------------------------------------------------------------------------------------


def test_ids_rise_and_are_above_what_was_there() -> None:
    election = Election(3)
    first, second = election.id_above(0), election.id_above(0)
    assert 3 << 64 < first < second < 4 << 64
    assert election.id_above(7 << 64) == (7 << 64) + 1
    assert in_words((7 << 64) + 1) == "7,1"


class Forgetful(Server):
    """A switch as P4Runtime has it at its strictest: it promotes nobody by itself, and remembers the highest id."""

    def __init__(self, highest: int) -> None:
        super().__init__()
        self.highest = highest
        self.gone = asyncio.Event()
        self.asked_for: list[int] = []

    async def StreamChannel(self, messages: Any, _: Any) -> AsyncIterator[p4r.StreamMessageResponse]:
        self.connections += 1
        async for message in messages:
            request = message.arbitration.election_id
            wanted = request.high << 64 | request.low
            self.asked_for.append(wanted)
            reply = p4r.StreamMessageResponse(arbitration=p4r.MasterArbitrationUpdate(device_id=1))
            if wanted < self.highest:
                reply.arbitration.status.code = 5 if self.gone.is_set() else 6
            self.highest = max(wanted, self.highest)
            reply.arbitration.election_id.high, reply.arbitration.election_id.low = divmod(self.highest, 1 << 64)
            yield reply
            if reply.arbitration.status.code == 6:
                await self.gone.wait()
                reply.arbitration.status.code = 5
                yield reply


async def test_a_switch_that_remembers_the_highest_id_is_given_a_higher_one() -> None:
    highest = 1 << 100
    async with serving(Forgetful(highest)) as (server, address):
        assert isinstance(server, Forgetful)
        switch = P4RuntimeSwitch(SwitchConfig(address, AT), Program(server.schema))
        with pytest.raises(Superseded):
            await switch.look(DEADLINE)
        starting = asyncio.create_task(switch.start(Ear(), DEADLINE))
        await until(lambda: is_not_primary(switch))
        assert server.asked_for == [0, 0]
        server.gone.set()
        await starting
        assert server.asked_for == [0, 0, highest + 1]
        await switch.close()
