# SPDX-License-Identifier: Apache-2.0
"""A host with two links to the switch: whichever of them goes down, its ranks' jobs go on with the right sums."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from p4reduce.transport.addresses import is_ipv6, join_host_port
from tests.support.cluster.cabling import CONTROLLER, cable, connect
from tests.support.cluster.stack import REPEATED, Ranks, Stack, go_on, job, slots_used
from tests.support.own_network import Namespace, ip, wait_until_up, with_ipv6
from tests.support.waiting import wait_until

SWITCH, SWITCH_IPV6 = "10.0.0.254", "fd00::fe"
LINKS, ENDS = ("link1", "link2"), ("port1", "port2")
MAC = "02:00:0a:00:00:01"
ETHERTYPE = 0x88B5  # for experiments
BROADCAST = b"\xff" * 6 + bytes.fromhex(MAC.replace(":", "")) + ETHERTYPE.to_bytes(2, "big")

pytestmark = pytest.mark.root


def bond(mode: str) -> Callable[[], None]:
    def make() -> None:
        try:
            ip("link", "add", "bond0", "address", MAC, "type", "bond", "mode", mode, "miimon", "20")
        except AssertionError as error:
            if "Unknown device type" not in str(error):
                raise
            pytest.skip("needs the kernel's module bonding")
        for link in LINKS:
            ip("link", "set", link, "down")
            ip("link", "set", link, "master", "bond0")
        for link in ("bond0", *LINKS):
            ip("link", "set", link, "up")
        ip("address", "add", "10.0.0.1/24", "dev", "bond0")
        wait_until_up("bond0")

    return make


def equal_paths(host: str = "10.0.0.1", switch: str = SWITCH) -> None:
    """Route over both links. Each of the host's sockets keeps to one of them while both are up."""
    of_kernel = Path("/proc/sys/net", "ipv6" if is_ipv6(host) else "ipv4")
    (of_kernel / "fib_multipath_hash_policy").write_text("1")  # UDP ports count, too
    for number, link in enumerate(LINKS, 1):
        if is_ipv6(host):
            with_ipv6(link, f"fd00:{number}::1")
    for link in ("all", *LINKS):
        (of_kernel / "conf" / link / "ignore_routes_with_linkdown").write_text("1")
        if not is_ipv6(host):
            (of_kernel / "conf" / link / "rp_filter").write_text("0")
    ip("address", "add", host, "dev", "lo")
    ways = [word for link in LINKS for word in ("nexthop", "via", switch, "dev", link, "onlink")]
    ip("route", "add", switch, "src", host, *ways)


BONDS = {"balance-xor": bond("balance-xor"), "active-backup": bond("active-backup"), "equal paths": equal_paths}


@contextlib.contextmanager
def two_hosts(
    target: str, make_bond: Callable[[], None], switch: str = SWITCH
) -> Iterator[tuple[Stack, Namespace, Namespace]]:
    """Run a stack whose switch has ports 1 and 2 to one host, and port 3 to another. Yield it with the hosts."""
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    with contextlib.ExitStack() as undo:
        switches, bonded, plain = (undo.enter_context(contextlib.closing(Namespace())) for _ in range(3))
        for number, host in enumerate((bonded, plain), 1):
            connect(switches, host, number)
        for port, link in zip(ENDS, LINKS, strict=True):
            cable(switches, port, bonded, link, MAC)
        cable(switches, "port3", plain, "link3", "02:00:0a:00:00:02")
        with plain.entered():
            ip("address", "add", "10.0.0.2/24", "dev", "link3")
            if is_ipv6(switch):
                with_ipv6("link3", "fd00::2")
        with bonded.entered():
            make_bond()
        stack = undo.enter_context(
            Stack(
                target,
                [f"{port}=eth:port{port}" for port in (1, 2, 3)],
                join_host_port(switch, 31314),
                enter=switches.entered,
                options=("--lag", "1,2", "--insecure"),
                listen=f"{CONTROLLER}:0",
                flooded="1,3",
            )
        )
        yield stack, bonded, plain


def take_down(host: Namespace, down: int) -> None:
    """Take one link of the host down, after the other one is up."""
    with host.entered():
        ip("link", "set", LINKS[1 - down], "up")
        wait_until_up(LINKS[1 - down])
        ip("link", "set", LINKS[down], "down")


def ports(stack: Stack) -> dict[int, str]:
    return {port["number"]: port["state"] for port in stack.status()["switches"][0]["ports"]}


def raw_socket(host: Namespace) -> socket.socket:
    """Return a socket for frames of one type at the host's link 4."""
    with host.entered():
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        raw.bind(("link4", ETHERTYPE))
    raw.setblocking(False)
    return raw


def start(stack: Stack, bonded: Namespace, plain: Namespace) -> Ranks:
    return stack.ranks(REPEATED, job="job", namespaces=(bonded, bonded, plain), world_size=3, repeat=True, timeout=60)


@pytest.mark.parametrize(
    "bond", [pytest.param(one, marks=() if one == "equal paths" else pytest.mark.slow) for one in BONDS]
)
def test_a_job_goes_on_when_one_link_goes_down_and_then_the_other(bond: str) -> None:
    with two_hosts("native", BONDS[bond]) as (stack, bonded, plain):
        with start(stack, bonded, plain) as ranks:
            go_on(ranks)
            for down, port in ((0, 1), (1, 2), (0, 1)):
                take_down(bonded, down)
                wait_until(lambda port=port: ports(stack)[port] != "UP", "the switch to notice")
                go_on(ranks)
                assert job(stack, "job")["in_trouble"] == []
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.parametrize("backend", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_ranks_take_the_other_path_when_the_switchs_end_goes_down(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """The host's own interface stays up, so the kernel lets a connected IPv6 socket keep to its route.

    The host has permanent neighbour entries, so that the result does not depend on neighbour discovery.
    """
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with two_hosts("native", partial(equal_paths, "fd00::1", SWITCH_IPV6), SWITCH_IPV6) as (stack, bonded, plain):
        mac = stack.status()["switches"][0]["mac"]
        with bonded.entered():
            for link in LINKS:
                ip("neighbour", "replace", SWITCH_IPV6, "lladdr", mac, "dev", link, "nud", "permanent")
        with start(stack, bonded, plain) as ranks:
            go_on(ranks)
            for down, port in enumerate(ENDS):
                with stack.enter():
                    ip("link", "set", ENDS[1 - down], "up")
                    wait_until_up(ENDS[1 - down])
                    ip("link", "set", port, "down")
                wait_until(lambda down=down: ports(stack)[1 + down] != "UP", "the switch to notice")
                go_on(ranks)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


def test_a_leaf_goes_on_over_each_of_its_cables_to_the_spine() -> None:
    """The two choose different cables: port 2 of each leads to port 3 of the other. Broadcasts do not go round."""
    spine_ports, leaf_ports = ("s1p1", "s1p2", "s1p3"), ("s2p1", "s2p3", "s2p2")
    with contextlib.ExitStack() as undo:
        switches, *hosts = (undo.enter_context(contextlib.closing(Namespace())) for _ in range(3))
        for ends in zip(spine_ports, leaf_ports, strict=True):
            cable(switches, ends[0], switches, ends[1], f"02:00:0a:00:01:0{ends[0][-1]}")
        for number, host in enumerate(hosts, 1):
            connect(switches, host, number)
            cable(switches, f"s{number}p4", host, "link4", f"02:00:0a:00:00:0{number}")
            with host.entered():
                ip("address", "add", f"10.0.0.{number}/24", "dev", "link4")
        stack = undo.enter_context(
            Stack(
                "native",
                [f"{port}=eth:s{{}}p{port}" for port in range(1, 5)],
                "10.0.0.25{}:31314",
                enter=switches.entered,
                options=("--lag", "1,2,3", "--insecure"),
                aggregators=2,
                uplink=1,
                listen=f"{CONTROLLER}:0",
                flooded="1,4",
            )
        )
        heard = undo.enter_context(contextlib.closing(raw_socket(hosts[1])))
        broadcasts = count()
        received: list[int] = []

        def broadcast_arrives() -> bool:
            """Send a broadcast of the first host. Return whether the second has received any since the last call."""
            with contextlib.closing(raw_socket(hosts[0])) as sender:
                sender.send(BROADCAST + next(broadcasts).to_bytes(8, "big") + bytes(38))
            before = len(received)
            with contextlib.suppress(BlockingIOError):
                while frame := heard.recv(64):
                    received.append(int.from_bytes(frame[len(BROADCAST) :][:8], "big"))
            return len(received) > before

        spine, leaf = stack.names
        where = {"namespaces": (hosts[0], hosts[1], hosts[1]), "at": (spine, leaf, leaf)}
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=60, **where) as ranks:
            go_on(ranks)
            for down, others in (("s1p1", ("s1p2", "s1p3")), ("s1p2", ("s1p1", "s1p3")), ("s1p3", ("s1p1", "s1p2"))):
                with switches.entered():
                    for port in others:
                        ip("link", "set", port, "up")
                    wait_until_up(*others)
                    ip("link", "set", down, "down")
                wait_until(lambda down=down: ports(stack)[int(down[-1])] != "UP", "the switch to notice")
                go_on(ranks)
                assert job(stack, "job")["in_trouble"] == []
                wait_until(broadcast_arrives, "a broadcast to arrive")
            with switches.entered():
                ip("link", "set", "s1p3", "up")
            go_on(ranks)
            for _ in range(2):
                wait_until(broadcast_arrives, "a broadcast to arrive")
        assert len(set(received)) == len(received), "a broadcast has gone round"


@pytest.mark.bmv2
@pytest.mark.slow
@pytest.mark.parametrize("bond", BONDS)
def test_a_job_goes_on_at_a_switch_that_does_not_report_its_ports(bond: str) -> None:
    """Answers to packets that are sent again leave by the port at which these arrive."""
    with two_hosts("bmv2", BONDS[bond]) as (stack, bonded, plain), start(stack, bonded, plain) as ranks:
        go_on(ranks, steps=2)
        for down in (0, 1):
            take_down(bonded, down)
            go_on(ranks, steps=2)
