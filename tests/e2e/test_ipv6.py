# SPDX-License-Identifier: Apache-2.0
"""Ranks and switches with IPv6 addresses, on interfaces and on sockets."""

from __future__ import annotations

import socket

import pytest

from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, go_on, job, over_udp, over_wires, placement, slots_used
from tests.support.waiting import wait_until

WORKERS = 3
CALLS = [Call((20_000,), density=0.5, seed=seed) for seed in range(3)]
WAYS = [
    pytest.param("native", "udp", "c", marks=pytest.mark.slow),
    ("native", "raw", "c"),
    ("native", "udp", "python"),
    pytest.param("native", "raw", "python", marks=pytest.mark.slow),
    pytest.param("native", "scapy", "python", marks=pytest.mark.slow),
    pytest.param("sim", "udp", "c", marks=pytest.mark.slow),
    pytest.param("bmv2", "udp", "c", marks=[pytest.mark.bmv2, pytest.mark.slow]),
    pytest.param("bmv2", "raw", "c", marks=[pytest.mark.bmv2, pytest.mark.slow]),
]


@pytest.fixture
def _loopback() -> None:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        pytest.skip("needs a kernel with IPv6 and its loopback address")


@pytest.mark.root
@pytest.mark.parametrize(("target", "transport", "backend"), WAYS)
def test_over_interfaces(monkeypatch: pytest.MonkeyPatch, target: str, transport: str, backend: str) -> None:
    """Ranks find the switch by neighbour discovery, with loss, too."""
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    how = {"world_size": WORKERS, "transport": transport, "interfaces": "worker"}
    with over_wires(target, ipv6=True) as stack:
        with stack.ranks(SHAPES, job="all", **how) as ranks:
            ranks.end_well(120)
        with stack.losing(0.01), stack.ranks(CALLS, job="lossy", **how) as ranks:
            ranks.end_well(120, loss=True)
        with stack.ranks(REPEATED, job="job", repeat=True, **how) as ranks:
            go_on(ranks, steps=2)
            places = [member["places"][0] for member in job(stack, "job")["members"]]
            assert [place["ip"] for place in places] == ["fd00::1", "fd00::2", "fd00::3"]
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.usefixtures("_loopback")
@pytest.mark.parametrize(
    ("target", "backend"),
    [
        ("native", "c"),
        pytest.param("native", "python", marks=pytest.mark.slow),
        pytest.param("sim", "c", marks=pytest.mark.slow),
        ("sim", "python"),
    ],
)
def test_over_sockets(monkeypatch: pytest.MonkeyPatch, target: str, backend: str) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_udp(target=target, ip="::1") as stack:
        (switch,) = stack.status()["switches"]
        assert (switch["ip"], switch["udp_port"]) == ("::1", int(stack.addresses[0].rpartition(":")[2]))
        with stack.ranks(CALLS, world_size=WORKERS) as ranks:
            ranks.end_well()


@pytest.mark.usefixtures("_loopback")
def test_a_tree(tmp_path: object) -> None:
    """Two leaves below a spine, with slots that the controller keeps when it is started anew."""
    state = ("--state", f"{tmp_path}/state", "--keep-slots")
    with over_udp(*state, target="native", leaves=2, ip="::1") as stack:
        at = {"world_size": 4, "at": (stack.names[1], stack.names[2])}
        with stack.ranks(REPEATED, job="job", repeat=True, **at) as ranks:
            go_on(ranks)
            before = placement(stack, "job")
            stack.stop_controller()
            stack.start_controller()
            wait_until(lambda: placement(stack, "job") == before, "the job to be as before")
            go_on(ranks)


@pytest.mark.usefixtures("_loopback")
def test_two_aggregators() -> None:
    with over_udp(target="native", aggregators=2, ip="::1") as stack, stack.ranks(CALLS, world_size=WORKERS) as ranks:
        ranks.end_well()


@pytest.mark.usefixtures("_loopback")
@pytest.mark.parametrize(
    ("ips", "options", "spare"),
    [
        (("127.0.0.1", "::1"), {}, None),
        (("::1", "127.0.0.1"), {"threads": 2}, None),
        pytest.param(("::1", "127.0.0.1"), {}, 1, marks=pytest.mark.slow),
        pytest.param(("127.0.0.1", "::1"), {}, 1, marks=pytest.mark.slow),
    ],
    ids=["IPv4 first", "IPv6 first", "an IPv4 spare", "an IPv6 spare"],
)
@pytest.mark.parametrize("backend", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_aggregators_of_both_families(
    monkeypatch: pytest.MonkeyPatch, backend: str, ips: tuple[str, str], options: dict[str, int], spare: int | None
) -> None:
    """A job goes on at the switch of one family when that of the other is lost."""
    if backend == "python" and options:
        pytest.skip("the Python backend has one thread")
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_udp(target="native", aggregators=2, ip=ips, spare=spare) as stack:
        assert [address[0] == "[" for address in stack.addresses] == [":" in ip for ip in ips]
        with stack.ranks(REPEATED, job="job", repeat=True, world_size=WORKERS, **options) as ranks:
            go_on(ranks)
            stack.switches[0].process.kill()
            go_on(ranks)
