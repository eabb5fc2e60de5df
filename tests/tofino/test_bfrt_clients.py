# SPDX-License-Identifier: Apache-2.0
"""Foreign clients of P4Runtime on the program for Tofino, over BF Runtime: p4runtime-shell and finsy."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

from tests.support.bfrt.target import OverBfRuntime, folder
from tests.support.dataplane.targets import Unavailable
from tests.support.p4runtime_shell import shell_python

pytestmark = [pytest.mark.p4c, pytest.mark.slow]

HERE = Path(__file__).parent
PROFILE = "tofino1-64"
FRAME = bytes(74)
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def target() -> Iterator[OverBfRuntime]:
    try:
        target = OverBfRuntime(PROFILE)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with target:
        yield target


def flooded(target: OverBfRuntime, *ports: int) -> None:
    """Send FRAME into port 1, and assert that it leaves each of these ports."""
    target.sockets[1].send(FRAME)
    received(target, *ports)


def received(target: OverBfRuntime, *ports: int) -> None:
    """Assert that FRAME leaves each of these ports."""
    for port in ports:
        target.sockets[port].settimeout(TIMEOUT_S)
        assert target.sockets[port].recv(2000) == FRAME


def test_p4runtime_shell(target: OverBfRuntime) -> None:
    program = folder(PROFILE)
    command = [shell_python(), str(HERE / "shell_session.py"), target.grpc_address]
    with subprocess.Popen(
        [*command, str(program / "p4info.txtpb"), str(program / "p4reduce.bin")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    ) as session:
        assert session.stdout is not None
        said = ""
        while not said.endswith("flooding\n"):
            line = session.stdout.readline()
            said += line
            assert line, said
        try:
            received(target, 1)
            flooded(target, 2, 3, 4)
            said += session.communicate("received\n", TIMEOUT_S)[0]
        finally:
            session.kill()
    assert said.endswith("done\n"), said


def talk(target: OverBfRuntime, what: Callable[[fy.Switch], Awaitable[None]]) -> None:
    """Connect, install the program by force, and do `what`."""
    program = folder(PROFILE)
    # finsy 0.30 cannot load an alias that is a full name of three parts.
    info = program / "finsy.p4info.txtpb"
    text = (program / "p4info.txtpb").read_text()
    info.write_text(re.sub('alias: ".*"', lambda alias: alias[0].replace(".", "_"), text))
    options = fy.SwitchOptions(p4info=info, p4blob=program / "p4reduce.bin", p4force=True)

    async def run() -> None:
        async with fy.Switch("switch", target.grpc_address, options) as switch:
            await what(switch)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


async def read(switch: fy.Switch, wanted: Any) -> list[Any]:
    return [one async for one in switch.read(wanted)]


def entry(mac: int, port: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "mac_addresses", match=fy.P4TableMatch(mac=mac), action=fy.P4TableAction("forward", port=port)
    )


def test_finsy_writes_and_reads_entries(target: OverBfRuntime) -> None:
    async def what(switch: fy.Switch) -> None:
        assert switch.is_primary
        assert await read(switch, fy.P4TableEntry("mac_addresses")) == []  # the installation has emptied the switch
        await switch.write([+entry(1, 3), +entry(2, 4)])
        await switch.write([~entry(1, 5), -entry(2, 4)])
        [found] = await read(switch, fy.P4TableEntry("mac_addresses"))
        assert found.action == fy.P4TableAction("forward", port=5)
        flood = fy.P4TableAction("flood", group=7)
        await switch.write([~fy.P4TableEntry("mac_addresses", is_default_action=True, action=flood)])
        [told] = await read(switch, fy.P4TableEntry("mac_addresses", is_default_action=True))
        assert told.action == flood
        with pytest.raises(fy.P4ClientError) as failed:
            await switch.write([+entry(3, 3), +entry(1, 3), +entry(4, 3), -entry(9, 3)])
        codes = {index: detail.canonical_code for index, detail in failed.value.details.items()}
        assert codes == {1: fy.GRPCStatusCode.ALREADY_EXISTS, 3: fy.GRPCStatusCode.NOT_FOUND}
        await switch.delete_all()
        assert await read(switch, fy.P4TableEntry("mac_addresses")) == []

    talk(target, what)


def test_finsy_sends_to_a_group_and_reads_counters(target: OverBfRuntime) -> None:
    async def what(switch: fy.Switch) -> None:
        await switch.write([+fy.P4MulticastGroupEntry(7, replicas=[(3, 1), (4, 2)])])
        flood = fy.P4TableAction("flood", group=7)
        await switch.write([~fy.P4TableEntry("mac_addresses", is_default_action=True, action=flood)])
        await asyncio.to_thread(flooded, target, 3, 4)
        await switch.write([fy.P4PacketOut(FRAME, through_pipeline=0, padding=0, egress_port=2, multicast_group=0)])
        await asyncio.to_thread(received, target, 2)
        counts = await read(switch, fy.P4CounterEntry("outcomes"))
        assert [count.packet_count for count in counts] == [0] * len(counts)
        assert len(counts) == 17

    talk(target, what)
