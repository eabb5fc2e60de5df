# SPDX-License-Identifier: Apache-2.0
"""Emulated networks for tests, each in its own network namespace, which the kernel removes with its last process."""

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
    """Return the targets of topology tests: native, and the P4 program on BMv2, or on sim if BMv2 is missing."""
    of_the_program = "bmv2" if shutil.which("simple_switch_grpc") else "sim"
    return [pytest.param(of_the_program, marks=pytest.mark.slow), "native"]


@contextlib.contextmanager
def _started(topology: Topology, target: str = "native", **options: Any) -> Iterator[Network]:
    from p4reduce_topos.emulation.network import Network

    with contextlib.closing(Namespace()) as namespace, namespace.entered(), Network(topology, target, **options) as one:
        yield one


@pytest.fixture
def mininet() -> None:
    """Skip the test if Mininet or root rights are missing."""
    if find_spec("mininet") is None or shutil.which("mnexec") is None:
        pytest.skip("needs Mininet: the package mininet, and mnexec on PATH")
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")


@pytest.fixture
def start(mininet: None) -> Start:  # noqa: ARG001 - requested for its checks
    """Return a function that starts a network from a topology, as a context manager."""
    return _started
