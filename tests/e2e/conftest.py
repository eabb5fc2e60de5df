# SPDX-License-Identifier: Apache-2.0
"""The stacks that the tests run on: each is started once for all tests, as their jobs do not meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from p4reduce.local.host import digest
from tests.support.cluster.c_program import program
from tests.support.cluster.stack import Setting, Stack, over_udp, over_wires

__all__ = ["program"]  # a fixture


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


SETTINGS = [
    "sim-udp",
    "native-udp",
    pytest.param("native-raw", marks=pytest.mark.root),
    pytest.param("sim-raw", marks=[pytest.mark.root, pytest.mark.slow]),
    pytest.param("bmv2-udp", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
    pytest.param("bmv2-raw", marks=[pytest.mark.root, pytest.mark.bmv2]),
    pytest.param("bmv2-scapy", marks=[pytest.mark.root, pytest.mark.bmv2, pytest.mark.slow]),
]


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Setting:
    return _setting(request)


@pytest.fixture(params=[*SETTINGS, "here"])
def way(request: pytest.FixtureRequest) -> Setting:
    """Each way through a switch, and the host's memory."""
    here: Setting = request.getfixturevalue("here") if request.param == "here" else _setting(request)
    return here


def _setting(request: pytest.FixtureRequest) -> Setting:
    target, transport = request.param.split("-")
    if transport == "scapy":
        pytest.importorskip("scapy", reason="needs scapy")
    if request.param in ("sim-udp", "native-udp"):
        return Setting(request.getfixturevalue("udp_stack" if target == "sim" else "native_udp_stack"))
    return Setting(request.getfixturevalue(f"{target}_on_wires"), {"transport": transport, "interfaces": "worker"})


@pytest.fixture
def here(udp_stack: Stack) -> Setting:
    """The ranks reduce in their host's memory."""
    if not digest():
        pytest.skip("this machine does not let processes share memory")
    return Setting(udp_stack, {"local": "auto"})


@pytest.fixture(params=["c", "python"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ranks have this engine."""
    monkeypatch.setenv("P4REDUCE_BACKEND", request.param)
    return str(request.param)
