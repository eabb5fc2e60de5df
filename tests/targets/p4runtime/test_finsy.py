# SPDX-License-Identifier: Apache-2.0
"""finsy, an asyncio P4Runtime controller, as a foreign client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

HERE = Path(__file__).parent
CPU_PORT = 510
FRAME = bytes(range(14)) + bytes(60)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """finsy makes its channels itself."""
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def talk(address: str, what: Callable[[fy.Switch], Awaitable[None]]) -> None:
    """Connect, install the pipeline by force, and do `what`."""
    options = fy.SwitchOptions(p4info=HERE / "conformance.p4info.txtpb", p4blob=HERE / "conformance.json", p4force=True)

    async def run() -> None:
        async with fy.Switch("switch", address, options) as switch:
            await what(switch)

    asyncio.run(asyncio.wait_for(run(), 30))


def read(switch: fy.Switch, wanted: fy.P4TableEntry | fy.P4CounterEntry) -> AsyncIterator[Any]:
    found: Any = switch.read(wanted)
    return found  # type: ignore[no-any-return]


def entry(dst: int, port: int) -> fy.P4TableEntry:
    return fy.P4TableEntry("exact_table", match=fy.P4TableMatch(dst=dst), action=fy.P4TableAction("forward", port=port))


def test_it_becomes_primary_and_installs_the_pipeline(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        assert switch.is_up
        assert switch.is_primary
        assert switch.p4runtime_version == (1, 3, 0, "")

    talk(address, what)


def test_entries(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        await switch.write([+entry(1, 3), +entry(2, 4)])
        await switch.write([~entry(1, 5), -entry(2, 4)])
        found = [one async for one in read(switch, fy.P4TableEntry("exact_table"))]
        assert len(found) == 1
        assert found[0].action == fy.P4TableAction("forward", port=5)
        default = fy.P4TableEntry("exact_table", is_default_action=True, action=fy.P4TableAction("discard"))
        await switch.write([~default])
        [told] = [one async for one in read(switch, fy.P4TableEntry("exact_table", is_default_action=True))]
        assert told.action == fy.P4TableAction("discard")

    talk(address, what)


def test_errors_name_the_update(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        with pytest.raises(fy.P4ClientError) as failed:
            await switch.write([+entry(1, 3), +entry(1, 3), +entry(2, 3), -entry(9, 3)])
        codes = {index: detail.canonical_code for index, detail in failed.value.details.items()}
        assert codes == {1: fy.GRPCStatusCode.ALREADY_EXISTS, 3: fy.GRPCStatusCode.NOT_FOUND}

    talk(address, what)


def test_groups_counters_and_packets(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        await switch.write([+fy.P4MulticastGroupEntry(7, replicas=[(CPU_PORT, 1), (CPU_PORT, 2)])])
        packets: Any = switch.read_packets()
        first = asyncio.ensure_future(anext(packets))
        await asyncio.sleep(0)  # it listens from here on
        await switch.write([fy.P4PacketOut(FRAME, kind=2, egress_port=0, padding=0, group=7)])
        came = [await first, await anext(packets)]
        assert [packet.payload for packet in came] == [FRAME, FRAME]
        assert sorted(packet["rest"] for packet in came) == [1, 2]
        await packets.aclose()
        counts = [one async for one in read(switch, fy.P4CounterEntry("cells", index=2))]
        assert [(one.packet_count, one.index) for one in counts] == [(1, 2)]

    talk(address, what)


def test_a_second_controller_waits_for_its_turn(address: str) -> None:
    options = fy.SwitchOptions(p4info=HERE / "conformance.p4info.txtpb", p4blob=HERE / "conformance.json")

    async def run() -> None:
        async with (
            fy.Switch("first", address, options(initial_election_id=20)) as first,
            fy.Switch("second", address, options(initial_election_id=10)) as second,
        ):
            assert (first.is_primary, second.is_primary) == (True, False)
            assert second.primary_id == 20
            with pytest.raises(fy.P4ClientError) as failed:
                await second.write([+entry(5, 1)])
            assert failed.value.code == fy.GRPCStatusCode.PERMISSION_DENIED

    asyncio.run(asyncio.wait_for(run(), 30))


def test_delete_all(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        await switch.write([+entry(1, 3)])
        await switch.delete_all()
        assert [one async for one in read(switch, fy.P4TableEntry("exact_table"))] == []

    talk(address, what)
