# SPDX-License-Identifier: Apache-2.0
"""Network namespaces that a test's thread enters, so that its links and addresses disturb nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from p4reduce.transport.addresses import is_ipv6
from tests.support.waiting import wait_until

CLONE_NEWNET = 0x40000000
START_UP_S = 20.0
THIS_THREADS = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace. The kernel removes it after `close`, once its last process has ended."""

    def __init__(self) -> None:
        """Create a namespace with loopback. Skips the test if that needs root."""
        former = os.open(THIS_THREADS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.unshare(CLONE_NEWNET) != 0:
                pytest.skip(f"needs root, to make a network namespace ({os.strerror(ctypes.get_errno())})")
            self._descriptor = os.open(THIS_THREADS, os.O_RDONLY | os.O_CLOEXEC)
            enter(former)
        finally:
            os.close(former)
        with self.entered():
            ip("link", "set", "lo", "up")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the namespace for the block.

        Threads and processes that it starts meanwhile are in the namespace, too.
        """
        former = os.open(THIS_THREADS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(self._descriptor)
            try:
                yield
            finally:
                enter(former)
        finally:
            os.close(former)

    @property
    def path(self) -> str:
        """The path by which ip(8) names the namespace until it is closed."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class OwnNetwork:
    """A veth pair: `host` has an IP address, of IPv4 or IPv6, and its peer `wire` has none."""

    host: str = "host0"
    host_ip: str = "10.9.0.1"
    host_mac: str = "02:00:0a:09:00:01"
    wire: str = "wire0"
    switch_ip: str = "10.9.0.100"
    switch_mac: str = "02:00:0a:09:00:64"


NETWORKS = {"IPv4": OwnNetwork(), "IPv6": OwnNetwork(host_ip="fd00:9::1", switch_ip="fd00:9::64")}


@contextlib.contextmanager
def own_network(protocol: str = "IPv4") -> Iterator[OwnNetwork]:
    """Move this thread into a new namespace that contains a veth pair. Skips the test if the kernel has no IPv6."""
    network = NETWORKS[protocol]
    with contextlib.closing(Namespace()) as namespace, namespace.entered():
        ip("link", "add", network.host, "address", network.host_mac, "type", "veth", "peer", "name", network.wire)
        add_address(network.host, network.host_ip)
        ip("link", "set", network.host, "up")
        ip("link", "set", network.wire, "up")
        wait_until_up(network.host, network.wire)
        wait_until(partial(is_local, network.host_ip), f"the kernel to receive packets to {network.host_ip}")
        yield network


def add_address(interface: str, address: str) -> None:
    """Give an interface an address in a network of its own. Skips the test if that is of IPv6 and the kernel has none.

    An IPv6 address can be used at once: the kernel does not look for others that have it.
    """
    if is_ipv6(address):
        off = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
        if not off.exists() or off.read_text().strip() != "0":
            pytest.skip("needs a kernel with IPv6")
        ip("address", "add", f"{address}/64", "dev", interface, "nodad")
    else:
        ip("address", "add", f"{address}/24", "dev", interface)


def with_ipv6(interface: str, address: str) -> None:
    """Turn IPv6 on at an interface, and give it an address. Skips the test if the kernel has no IPv6."""
    off = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    if off.exists():
        off.write_text("0")
    add_address(interface, address)


def is_local(address: str) -> bool:
    """Return whether this network namespace receives packets to the address. It does not at once, over IPv6."""
    try:
        return ip("route", "get", address).startswith("local")
    except AssertionError:
        return False


@contextlib.contextmanager
def own_cables(pairs: int = 1) -> Iterator[None]:
    """Move this thread into a new namespace with veth pairs without addresses: `host1` to `switch1`, and so on."""
    with contextlib.closing(Namespace()) as namespace, namespace.entered():
        for number in range(1, pairs + 1):
            ends = (f"host{number}", f"switch{number}")
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for end in ends:
                quiet = Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6")
                if quiet.exists():
                    quiet.write_text("1")
                ip("link", "set", end, "mtu", "9000", "arp", "off", "up")
            wait_until_up(*ends)
        yield


def add_vlan(interface: str, name: str, vlan: int, protocol: str = "802.1Q") -> None:
    """Add an interface for a VLAN, and set it up. Skips the test if the kernel has no VLANs."""
    try:
        ip("link", "add", "link", interface, "name", name, "type", "vlan", "protocol", protocol, "id", str(vlan))
    except AssertionError as error:
        if "Unknown device type" not in str(error):
            raise
        pytest.skip("needs the kernel's module 8021q")
    ip("link", "set", name, "up")


def wait_until_up(*links: str) -> None:
    """Wait until links are operational. The kernel drops packets until some time after a link is set up."""
    wait_until(
        lambda: all("state UP" in ip("-oneline", "link", "show", link) for link in links),
        lambda: "".join(ip("-oneline", "link", "show", link) for link in links),
        START_UP_S,
    )


def ip(*arguments: str) -> str:
    """Run ip(8) and return its output. Raises AssertionError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # of sanitizers
    try:
        return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, env=environment).stdout
    except FileNotFoundError:
        pytest.skip("needs ip, from iproute2")
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"ip {' '.join(arguments)}: {error.stderr}") from error


def enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture
def network() -> Iterator[OwnNetwork]:
    """Run the test in a network namespace of its own, with a veth pair."""
    with own_network() as network:
        yield network


@pytest.fixture(params=NETWORKS)
def either_network(request: pytest.FixtureRequest) -> Iterator[OwnNetwork]:
    """Run the test twice as with `network`: the addresses are of IPv4, and of IPv6."""
    with own_network(request.param) as network:
        yield network


@pytest.fixture
def alone() -> Iterator[None]:
    """Run the test in a network namespace of its own. Skips the test without root."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    with contextlib.closing(Namespace()) as namespace, namespace.entered():
        yield
