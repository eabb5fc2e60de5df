# SPDX-License-Identifier: Apache-2.0
"""Networks for tests: each in a network namespace of its own, which is gone when the last of its processes is."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.own_network import Namespace

if TYPE_CHECKING:
    from p4reduce_topos.emulation.network import Network
    from p4reduce_topos.model import Topology


Start = Callable[..., AbstractContextManager["Network"]]


def targets() -> list[Any]:
    """What runs the switches of topology tests: native, and the P4 program on BMv2 or else on sim."""
    of_the_program = "bmv2" if shutil.which("simple_switch_grpc") else "sim"
    return [pytest.param(of_the_program, marks=pytest.mark.slow), "native"]


@contextlib.contextmanager
def _started(topology: Topology, target: str = "native", **options: Any) -> Iterator[Network]:
    from p4reduce_topos.emulation.network import Network

    with contextlib.closing(Namespace()) as namespace, namespace.entered(), Network(topology, target, **options) as one:
        yield one


@pytest.fixture
def mininet() -> None:
    """Skips where there can be no networks."""
    if find_spec("mininet") is None or shutil.which("mnexec") is None:
        pytest.skip("needs Mininet: the package mininet, and mnexec on PATH")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")


@pytest.fixture
def start(mininet: None) -> Start:  # noqa: ARG001 - for what it checks
    """Make a network out of a topology."""
    return _started
