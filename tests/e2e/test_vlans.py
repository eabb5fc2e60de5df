# SPDX-License-Identifier: Apache-2.0
"""Ranks in two VLANs and one without: the switch sends each its results with its tag, and all get the right sums."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator

import pytest

from p4reduce_targets.offloads import switch_off
from tests.support.cluster.cabling import CONTROLLER, AccessPort, cable, connect
from tests.support.cluster.calls import SHAPES
from tests.support.cluster.stack import Stack, go_on, job, slots_used
from tests.support.own_network import Namespace, add_vlan, ip, wait_until_up, with_ipv6
from tests.support.waiting import wait_until

VLANS = (10, 20, 0)

pytestmark = pytest.mark.root


def subinterface(undo: contextlib.ExitStack, switches: Namespace, port: int, host: Namespace, vlan: int) -> str:
    """Connect a host that adds and removes the tags itself. Return its interface."""
    del undo
    cable(switches, f"port{port}", host, f"link{port}", f"02:00:0a:00:00:{port:02x}")
    with host.entered():
        switch_off(f"link{port}")
    if not vlan:
        return f"link{port}"
    name = f"link{port}.{vlan}"
    with host.entered():
        add_vlan(f"link{port}", name, vlan)
    return name


def access_port(undo: contextlib.ExitStack, switches: Namespace, port: int, host: Namespace, vlan: int) -> str:
    """Connect a host by another switch, which adds and removes the tags at the host's port. Return its interface."""
    if not vlan:
        return subinterface(undo, switches, port, host, vlan)
    access = undo.enter_context(contextlib.closing(Namespace()))
    cable(switches, f"port{port}", access, "trunk", "02:00:0a:00:01:01")
    cable(access, "host", host, f"link{port}", f"02:00:0a:00:00:{port:02x}")
    with host.entered():
        switch_off(f"link{port}")
    undo.enter_context(AccessPort(access, "host", "trunk", vlan))
    return f"link{port}"


WAYS: dict[str, Callable[[contextlib.ExitStack, Namespace, int, Namespace, int], str]] = {
    "subinterface": subinterface,
    "access port": access_port,
}


@contextlib.contextmanager
def three_hosts(target: str, way: str, protocol: str) -> Iterator[tuple[Stack, list[Namespace]]]:
    """Run a stack whose switch has a host at each of three ports."""
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    with contextlib.ExitStack() as undo:
        switches, *hosts = (undo.enter_context(contextlib.closing(Namespace())) for _ in range(1 + len(VLANS)))
        for port, (host, vlan) in enumerate(zip(hosts, VLANS, strict=True), 1):
            connect(switches, host, port)
            interface = WAYS[way](undo, switches, port, host, vlan)
            with host.entered():
                if protocol == "IPv6":
                    with_ipv6(interface, f"fd00::{port}")
                else:
                    ip("address", "add", f"10.0.0.{port}/24", "dev", interface)
                wait_until_up(interface)
        stack = undo.enter_context(
            Stack(
                target,
                [f"{port}=eth:port{port}" for port in (1, 2, 3)],
                "[fd00::fe]:31314" if protocol == "IPv6" else "10.0.0.254:31314",
                enter=switches.entered,
                options=("--insecure",),
                listen=f"{CONTROLLER}:0",
            )
        )
        yield stack, hosts


@pytest.mark.parametrize(
    ("way", "transport"),
    [
        ("subinterface", "udp"),
        pytest.param("subinterface", "raw", marks=pytest.mark.slow),
        pytest.param("access port", "udp", marks=pytest.mark.slow),
        ("access port", "raw"),
    ],
)
@pytest.mark.parametrize("protocol", ["IPv4", pytest.param("IPv6", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", ["native", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow])])
def test_sums(target: str, protocol: str, way: str, transport: str) -> None:
    """The raw transport sends frames without a tag out of a VLAN interface, and the kernel adds it."""
    with three_hosts(target, way, protocol) as (stack, hosts):
        options = {"namespaces": hosts, "world_size": len(hosts), "transport": transport}
        with stack.ranks(SHAPES, job="vlans", repeat=True, **options) as ranks:
            go_on(ranks, steps=len(SHAPES))
            assert [one["places"][0].get("vlan", 0) for one in job(stack, "vlans")["members"]] == list(VLANS)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")
