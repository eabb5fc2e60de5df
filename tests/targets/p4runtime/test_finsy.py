# SPDX-License-Identifier: Apache-2.0
"""finsy, an asyncio P4Runtime controller, as a foreign client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

HERE = Path(__file__).parent
CPU_PORT = 510
FRAME = bytes(range(14)) + bytes(60)
OPTIONS = fy.SwitchOptions(p4info=HERE / "conformance.p4info.txtpb", p4blob=HERE / "conformance.json")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove proxies from the environment, because finsy opens its channels itself."""
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def talk(address: str, what: Callable[[fy.Switch], Awaitable[None]]) -> None:
    """Connect, install the pipeline by force, and do `what`."""

    async def run() -> None:
        async with fy.Switch("switch", address, OPTIONS(p4force=True)) as switch:
            await what(switch)

    asyncio.run(asyncio.wait_for(run(), 30))


async def read(switch: fy.Switch, wanted: Any) -> list[Any]:
    return [one async for one in switch.read(wanted)]


def entry(dst: int, port: int) -> fy.P4TableEntry:
    return fy.P4TableEntry("exact_table", match=fy.P4TableMatch(dst=dst), action=fy.P4TableAction("forward", port=port))


def test_entries_and_errors(address: str) -> None:
    async def what(switch: fy.Switch) -> None:
        assert switch.is_primary
        assert switch.p4runtime_version == (1, 3, 0, "")
        await switch.write([+entry(1, 3), +entry(2, 4)])
        await switch.write([~entry(1, 5), -entry(2, 4)])
        [found] = await read(switch, fy.P4TableEntry("exact_table"))
        assert found.action == fy.P4TableAction("forward", port=5)
        await switch.write(
            [~fy.P4TableEntry("exact_table", is_default_action=True, action=fy.P4TableAction("discard"))]
        )
        [told] = await read(switch, fy.P4TableEntry("exact_table", is_default_action=True))
        assert told.action == fy.P4TableAction("discard")
        with pytest.raises(fy.P4ClientError) as failed:
            await switch.write([+entry(3, 3), +entry(1, 3), +entry(4, 3), -entry(9, 3)])
        codes = {index: detail.canonical_code for index, detail in failed.value.details.items()}
        assert codes == {1: fy.GRPCStatusCode.ALREADY_EXISTS, 3: fy.GRPCStatusCode.NOT_FOUND}
        await switch.delete_all()
        assert await read(switch, fy.P4TableEntry("exact_table")) == []

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
        [count] = await read(switch, fy.P4CounterEntry("cells", index=2))
        assert (count.packet_count, count.index) == (1, 2)

    talk(address, what)


def test_a_second_controller_waits_for_its_turn(address: str) -> None:
    async def run() -> None:
        async with (
            fy.Switch("first", address, OPTIONS(initial_election_id=20)) as first,
            fy.Switch("second", address, OPTIONS(initial_election_id=10)) as second,
        ):
            assert (first.is_primary, second.is_primary) == (True, False)
            assert second.primary_id == 20
            with pytest.raises(fy.P4ClientError) as failed:
                await second.write([+entry(5, 1)])
            assert failed.value.code == fy.GRPCStatusCode.PERMISSION_DENIED

    asyncio.run(asyncio.wait_for(run(), 30))
