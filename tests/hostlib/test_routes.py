# SPDX-License-Identifier: Apache-2.0
"""Interfaces with several addresses, and the ways to a switch that go by others than the first."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from p4reduce.control.finding import Finding
from p4reduce.transport import Switch, TransportError, open_transport
from p4reduce.transport.routes import Route, addresses_of, rate_toward, route_to
from p4reduce_controller.doctor import host
from tests.support.own_network import OwnNetwork, add_address, ip, own_network
from tests.support.waiting import wait_until

pytestmark = pytest.mark.root

SECOND, FAR = "10.8.0.7", "10.8.0.100"


def second(network: OwnNetwork) -> str:
    ip("address", "add", f"{SECOND}/24", "dev", network.host)
    return network.host


def labelled(network: OwnNetwork) -> str:
    """Give all addresses labels of alias interfaces, as ifconfig does."""
    ip("address", "flush", "dev", network.host)
    for number, address in enumerate((network.host_ip, SECOND)):
        ip("address", "add", f"{address}/24", "dev", network.host, "label", f"{network.host}:{number}")
    return network.host


def in_one_network(network: OwnNetwork) -> str:
    """Set up a route that says which of the interface's addresses packets come from, and return the interface."""
    ip("address", "add", "10.9.0.7/24", "dev", network.host)
    ip("address", "add", f"{SECOND}/32", "dev", network.host)
    ip("route", "add", f"{FAR}/32", "dev", network.host, "src", SECOND)
    return network.host


def beside_ipv6(network: OwnNetwork) -> str:
    ip("address", "add", "fd00:8::7/64", "dev", network.host, "nodad")
    return second(network)


def vlan(network: OwnNetwork) -> str:
    return _on_top("vlan5", "link", network.host, "name", "vlan5", "type", "vlan", "id", "5")


def bond(_: OwnNetwork) -> str:
    return _on_top("bond7", "bond7", "type", "bond", "mode", "active-backup")


def bridge(_: OwnNetwork) -> str:
    return _on_top("bridge7", "bridge7", "type", "bridge")


def _on_top(name: str, *how: str) -> str:
    """Add another interface with two addresses of its own."""
    try:
        subprocess.run(["ip", "link", "add", *how], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"ip link add {' '.join(how)}: {error.stderr}")
    ip("address", "add", "10.7.0.7/24", "dev", name)
    ip("address", "add", f"{SECOND}/24", "dev", name)
    ip("link", "set", name, "up")
    return name


def on_loopback(network: OwnNetwork) -> str:
    """Set up a host that speaks BGP: the interface has an address of its link, and packets come from another."""
    ip("address", "add", f"{SECOND}/32", "dev", "lo")
    ip("route", "add", f"{FAR}/32", "dev", network.host, "src", SECOND)
    return network.host


SETUPS = [second, labelled, in_one_network, beside_ipv6, vlan, bond, bridge, on_loopback]


@pytest.mark.parametrize("set_up", SETUPS)
def test_the_way_by_another_address_than_the_first(network: OwnNetwork, set_up: Callable[[OwnNetwork], str]) -> None:
    interface = set_up(network)
    switch = Switch(FAR, 31314, network.switch_mac)
    assert route_to(FAR) == route_to(FAR, interface) == Route(interface, SECOND)
    for kind in ("raw", "scapy", "udp"):
        for named in (None, interface):
            with contextlib.closing(open_transport(kind, switch, interface=named)) as transport:
                assert transport.local_address[0] == SECOND, (kind, named)
    assert rate_toward(switch, None) == rate_toward(switch, interface)
    mtu = next(host.way(FAR, 31314, 1000, "far"))
    assert mtu == Finding("MTU to far", "ok", f"{interface} has 1500, 1000 are needed")


@pytest.mark.parametrize("untagged_only", [False, True])
def test_the_doctor_names_the_vlan_of_an_interface(network: OwnNetwork, untagged_only: bool) -> None:
    interface = vlan(network)
    found = host.way(FAR, 31314, 1000, "far", untagged_only=untagged_only)
    (finding,) = [one for one in found if one.subject == "VLAN to far"]
    assert finding.verdict == ("problem" if untagged_only else "ok")
    assert finding.found.startswith(f"{interface} is in VLAN 5")


IPV6_SECOND, IPV6_FAR = "fd00:8::7", "fd00:8::100"


def ipv6_second(network: OwnNetwork) -> str:
    add_address(network.host, IPV6_SECOND)
    return network.host


def ipv6_in_one_network(network: OwnNetwork) -> str:
    """Set up a route that says which of the interface's addresses packets come from, and return the interface."""
    ip("address", "add", "fd00:9::7/64", "dev", network.host, "nodad")
    ip("address", "add", f"{IPV6_SECOND}/128", "dev", network.host, "nodad")
    ip("route", "add", f"{IPV6_FAR}/128", "dev", network.host, "src", IPV6_SECOND)
    return network.host


def ipv6_beside_ipv4(network: OwnNetwork) -> str:
    second(network)
    return ipv6_second(network)


def ipv6_with_a_peer(network: OwnNetwork) -> str:
    ip("address", "add", IPV6_SECOND, "peer", IPV6_FAR, "dev", network.host, "nodad")
    return network.host


def ipv6_on_loopback(network: OwnNetwork) -> str:
    """Set up a host that speaks BGP: the interface has a link-local address alone, and packets come from another."""
    ip("-6", "address", "flush", "dev", network.host, "scope", "global")
    ip("address", "add", f"{IPV6_SECOND}/128", "dev", "lo")
    ip("route", "add", f"{IPV6_FAR}/128", "dev", network.host)
    return network.host


def is_in_use() -> bool:
    try:
        return f"src {IPV6_SECOND} " in ip("route", "get", IPV6_FAR)
    except AssertionError:
        return False


IPV6_SETUPS = [ipv6_second, ipv6_in_one_network, ipv6_beside_ipv4, ipv6_with_a_peer, ipv6_on_loopback]


@pytest.mark.parametrize("set_up", IPV6_SETUPS)
def test_the_way_by_another_ipv6_address_than_the_first(set_up: Callable[[OwnNetwork], str]) -> None:
    with own_network("IPv6") as network:
        interface = set_up(network)
        wait_until(is_in_use, "the kernel, which makes some IPv6 routes and addresses a little later")
        switch = Switch(IPV6_FAR, 31314, network.switch_mac)
        assert route_to(IPV6_FAR) == route_to(IPV6_FAR, interface) == Route(interface, IPV6_SECOND)
        for kind in ("raw", "scapy", "udp"):
            for named in (None, interface):
                with contextlib.closing(open_transport(kind, switch, interface=named)) as transport:
                    assert transport.local_address[0] == IPV6_SECOND, (kind, named)
        assert rate_toward(switch, None) == rate_toward(switch, interface)


def test_without_an_ipv6_route_the_interface_that_is_named() -> None:
    """Frames need none. No worker has a link-local address."""
    with own_network("IPv6") as network:
        ipv6_second(network)
        wait_until(lambda: "fe80::" in ip("-6", "address", "show", "dev", network.host), "a link-local address")
        assert sorted(addresses_of(network.host, socket.AF_INET6)) == sorted([network.host_ip, IPV6_SECOND])
        assert addresses_of(network.host) == []
        switch = Switch("2001:db8::9", 31314, network.switch_mac)
        with contextlib.closing(open_transport("raw", switch, interface=network.host)) as transport:
            assert transport.local_address[0] in (network.host_ip, IPV6_SECOND)
        with pytest.raises(OSError, match="unreachable"):
            route_to("2001:db8::9", network.host)
        ip("-6", "address", "flush", "dev", network.host, "scope", "global")
        with pytest.raises(TransportError, match=f"interface '{network.host}' has no IPv6 address"):
            open_transport("raw", switch, interface=network.host)


@pytest.mark.parametrize("text", ["localhost", "10.0.0", "fd00::1::2"])
def test_what_is_no_address_has_no_route(text: str) -> None:
    with pytest.raises(OSError, match="illegal IP address"):
        route_to(text)


def test_without_a_route_the_interface_that_is_named(network: OwnNetwork) -> None:
    """Frames need none."""
    second(network)
    assert addresses_of(network.host) == [network.host_ip, SECOND]
    switch = Switch("192.0.2.9", 31314, network.switch_mac)
    with contextlib.closing(open_transport("raw", switch, interface=network.host)) as transport:
        assert transport.local_address[0] == network.host_ip
    with pytest.raises(OSError, match="unreachable"):
        route_to("192.0.2.9")


@pytest.mark.parametrize("transport", ["udp", "raw"])
def test_an_ipv6_address_that_is_not_yet_used(transport: str) -> None:
    """The kernel asks first whether another host has it. A container's first program starts meanwhile."""
    with own_network("IPv6") as network:

        def is_tentative() -> bool:
            """Add the address again, and return whether the kernel still asks. On a busy machine, it may be done."""
            ip("address", "del", f"{network.host_ip}/64", "dev", network.host)
            ip("address", "add", f"{network.host_ip}/64", "dev", network.host)
            return "tentative" in ip("-6", "address", "show", "dev", network.host)

        wait_until(is_tentative, "an address that is not yet used")
        to = Switch(network.switch_ip, 31314, network.switch_mac)
        with contextlib.closing(open_transport(transport, to)) as opened:
            assert opened.local_address[0] == network.host_ip


@pytest.mark.parametrize("transport", ["udp", "raw"])
def test_no_temporary_address(transport: str) -> None:
    """It may be gone before the job ends."""
    with own_network("IPv6") as network:
        Path(f"/proc/sys/net/ipv6/conf/{network.host}/use_tempaddr").write_text("2")
        ip("address", "change", f"{network.host_ip}/64", "dev", network.host, "mngtmpaddr", "nodad")
        wait_until(lambda: "temporary" in (seen := addresses()) and "tentative" not in seen, "a temporary address")
        assert route_to(network.switch_ip).source != network.host_ip
        to = Switch(network.switch_ip, 31314, network.switch_mac)
        with contextlib.closing(open_transport(transport, to)) as opened:
            assert opened.local_address[0] == network.host_ip


def addresses() -> str:
    return ip("-6", "address", "show", "scope", "global")
