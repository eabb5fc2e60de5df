# SPDX-License-Identifier: Apache-2.0
"""The stacks that the tests run on: each is started once for all tests, as their jobs do not meet."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from p4reduce_bench.processes import network
from tests.own_network import Namespace, ip

from .stack import Stack

PORTS = 4


@dataclass(frozen=True)
class Setting:
    """A stack, and how ranks reach its switch."""

    stack: Stack
    options: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def over_udp(*controller_options: str, target: str = "sim", aggregators: int = 1, leaves: int = 0) -> Iterator[Stack]:
    """Needs nothing: one UDP port, behind which all ranks are. With several aggregators, one of each.

    With leaves, the first switch is their spine, to which a port of its own leads.
    """
    ports = ["1=udp:127.0.0.1:0", *(["2=udp:127.0.0.1:0"] if leaves else [])]
    switches, uplink = (1 + leaves, 2) if leaves else (aggregators, 0)
    with Stack(target, ports, options=controller_options, aggregators=switches, uplink=uplink) as stack:
        yield stack


@contextlib.contextmanager
def over_wires(target: str, *controller_options: str, mtu: int = 1500, narrow: str = "") -> Iterator[Stack]:
    """A network namespace in which rank r has the interface worker<r>, whose other end is switch port r + 1.

    narrow: the interface whose MTU is 1,500 and not `mtu`.
    """
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    with contextlib.closing(Namespace()) as namespace:
        with namespace.entered():
            network.star(PORTS, mtu)
            if narrow:
                ip("link", "set", narrow, "mtu", "1500")
        ports = [f"{port}=eth:port{port}" for port in range(1, PORTS + 1)]
        with Stack(target, ports, "10.0.0.254:31314", enter=namespace.entered, options=controller_options) as stack:
            yield stack


@pytest.fixture(scope="session")
def udp_stack() -> Iterator[Stack]:
    with over_udp() as stack:
        yield stack


@pytest.fixture(scope="session")
def native_udp_stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack


@pytest.fixture(scope="session")
def native_on_wires() -> Iterator[Stack]:
    with over_wires("native") as stack:
        yield stack


@pytest.fixture(scope="session")
def sim_on_wires() -> Iterator[Stack]:
    with over_wires("sim") as stack:
        yield stack


@pytest.fixture(scope="session")
def bmv2_on_wires() -> Iterator[Stack]:
    with over_wires("bmv2") as stack:
        yield stack


@pytest.fixture(
    params=[
        "sim-udp",
        "native-udp",
        pytest.param("native-raw", marks=pytest.mark.root),
        pytest.param("sim-raw", marks=[pytest.mark.root, pytest.mark.slow]),
        pytest.param("bmv2-udp", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
        pytest.param("bmv2-raw", marks=[pytest.mark.root, pytest.mark.bmv2]),
        pytest.param("bmv2-scapy", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
    ]
)
def setting(request: pytest.FixtureRequest) -> Setting:
    target, transport = request.param.split("-")
    if request.param == "sim-udp":
        return Setting(request.getfixturevalue("udp_stack"))
    if request.param == "native-udp":
        return Setting(request.getfixturevalue("native_udp_stack"))
    if transport == "scapy":
        pytest.importorskip("scapy", reason="needs scapy")
    return Setting(request.getfixturevalue(f"{target}_on_wires"), {"transport": transport, "interfaces": "worker"})
