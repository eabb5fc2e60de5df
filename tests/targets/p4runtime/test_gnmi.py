# SPDX-License-Identifier: Apache-2.0
"""Ports that go up and down, as the switches of this machine tell it by gNMI and the controller hears it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue

import finsy as fy
import grpc
import pytest
from finsy.gnmiclient import GNMIClientError
from finsy.proto import gnmi, gnmi_grpc

from p4reduce.control.grpc_channels import open_aio_channel, open_grpc_channel
from p4reduce_controller.p4runtime.port_watch import NO_GNMI, States, watch_ports
from p4reduce_targets.bmv2 import BINARY, Bmv2
from p4reduce_targets.native.switch import NativePort
from p4reduce_targets.p4runtime import Server
from p4reduce_targets.p4runtime import gnmi as gnmi_module
from p4reduce_targets.p4runtime.gnmi import MAX_SUBSCRIPTIONS
from p4reduce_targets.ports import EthPort, Port, PortInfo
from p4reduce_targets.switch import Switch
from tests.support.own_network import ip, own_cables

from .fake_device import CPU_PORT, FakeDataPlane

DEADLINE = 15.0


@contextmanager
def served(ports: Sequence[PortInfo], address: str = "127.0.0.1:0", opened: Sequence[Port] = ()) -> Iterator[str]:
    with (
        Switch(FakeDataPlane, opened, CPU_PORT) as switch,
        Server(switch, address=address, ports=ports) as server,
    ):
        yield server.address


async def watch(address: str, changed: Callable[[States], None]) -> str:
    async with open_aio_channel(address) as channel:
        return await watch_ports(channel, changed)


def watched(address: str, steps: list[tuple[tuple[str, ...], dict[int, str]]]) -> None:
    """Run each `ip` command, and check the port states that are reported after it."""

    async def work() -> None:
        told: list[States] = []
        watching = asyncio.ensure_future(watch(address, told.append))
        for change, wanted in steps:
            if change:
                ip(*change)  # in this thread, which may be in a namespace
            for _ in range(int(DEADLINE / 0.02)):
                if (told and told[-1] == wanted) or watching.done():
                    break
                await asyncio.sleep(0.02)
            assert told, watching
            assert told[-1] == wanted
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(work())


def test_interfaces_come_and_go(tmp_path: Path) -> None:
    everywhere = f"unix:{tmp_path / 'gnmi'}"  # gRPC's threads may be of another namespace
    with ExitStack() as stack:
        stack.enter_context(own_cables(2))
        ports = [EthPort(1, "switch1"), EthPort(7, "switch2")]
        address = stack.enter_context(served(ports, everywhere, ports))
        watched(
            address,
            [
                ((), {1: "UP", 7: "UP"}),
                (("link", "set", "host2", "down"), {1: "UP", 7: "DOWN"}),  # the cable's other end
                (("link", "set", "switch1", "down"), {1: "DOWN", 7: "DOWN"}),
                (("link", "set", "switch1", "up"), {1: "UP", 7: "DOWN"}),
                (("link", "del", "switch2"), {1: "UP", 7: "NOT_PRESENT"}),
            ],
        )


def test_sockets_are_up() -> None:
    with served([NativePort(3, "udp:127.0.0.1:1"), NativePort(4, "udp:127.0.0.1:2")]) as address:
        watched(address, [((), {3: "UP", 4: "UP"})])


def test_a_switch_that_tells_nothing() -> None:
    with Switch(FakeDataPlane, [], CPU_PORT) as switch, Server(switch, address="127.0.0.1:0") as server:
        why = asyncio.run(watch(server.address, lambda _: None))
    assert why == NO_GNMI


@pytest.mark.bmv2
def test_bmv2_tells_nothing() -> None:
    if shutil.which(BINARY) is None:
        pytest.skip(f"{BINARY} is not on PATH")
    with Bmv2(grpc_address="127.0.0.1:0", cpu_port=CPU_PORT) as process:
        assert asyncio.run(watch(process.address, lambda _: None)) == NO_GNMI


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("interfaces/interface[name=*]/state/ifindex", [3, 4]),
        ("interfaces/interface[name=udp:x]/state", [4, "UP"]),
        ("interfaces/interface[name=nobody]/state", "there is no interface 'nobody'"),
        ("interfaces/interface[name=*]/config", "interfaces/interface[name=*]/state has ifindex and oper-status"),
        ("components", "has ifindex and oper-status"),
    ],
)
def test_what_is_there_to_get(path: str, found: object) -> None:
    async def get(address: str) -> list[object]:
        client = fy.GNMIClient("")
        async with open_aio_channel(address) as channel:
            await client.open(channel=channel)
            return [update.value for update in await client.get(fy.GNMIPath(path))]

    with served([NativePort(3, "eth:nobody"), NativePort(4, "udp:x")]) as address:
        if isinstance(found, list):
            assert asyncio.run(get(address)) == found
        else:
            with pytest.raises(GNMIClientError) as caught:
                asyncio.run(get(address))
            assert found in caught.value.message


def test_who_says_nothing_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with served([NativePort(4, "udp:x")]) as address, open_grpc_channel(address) as channel:
        stub = gnmi_grpc.gNMIStub(channel)
        with monkeypatch.context() as patch:  # not for those who say something
            patch.setattr(gnmi_module, "FIRST_MESSAGE_TIMEOUT_S", 0.5)
            silent = [stub.Subscribe(iter(Queue().get, None), timeout=DEADLINE) for _ in range(MAX_SUBSCRIPTIONS)]
            for stream in silent:
                with pytest.raises(grpc.RpcError, match=r"no subscription came within 0\.5 s"):
                    next(stream)
        watched(address, [((), {4: "UP"})])


def test_so_many_may_watch() -> None:
    path = fy.GNMIPath("interfaces/interface[name=*]/state/oper-status").path
    once = gnmi.SubscribeRequest(
        subscribe=gnmi.SubscriptionList(subscription=[gnmi.Subscription(path=path)], mode=gnmi.SubscriptionList.ONCE)
    )
    with served([NativePort(4, "udp:x")]) as address, open_grpc_channel(address) as channel:
        stub = gnmi_grpc.gNMIStub(channel)
        assert len(list(stub.Subscribe(iter([once]), timeout=DEADLINE))) == 2
        once.subscribe.mode = gnmi.SubscriptionList.STREAM
        streams = [stub.Subscribe(iter([once]), timeout=60) for _ in range(MAX_SUBSCRIPTIONS)]
        for stream in streams:
            assert next(stream).HasField("update")
        with pytest.raises(grpc.RpcError, match=f"accepted are up to {MAX_SUBSCRIPTIONS} subscriptions"):
            next(stub.Subscribe(iter([once]), timeout=DEADLINE))
        for stream in streams:
            stream.cancel()
