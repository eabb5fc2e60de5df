# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime servers that the same tests run against."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from p4reduce_targets.bmv2 import BINARY, Bmv2
from p4reduce_targets.p4runtime import Server
from p4reduce_targets.switch import Load, Switch
from tests.support.dataplane.targets import looping

from .fake_device import CPU_PORT, FakeDataPlane


@contextmanager
def embedded(load: Load) -> Iterator[str]:
    """Run a switch without ports in this process, and yield its server's address."""
    with Switch(load, [], CPU_PORT) as switch, looping(switch), Server(switch, address="127.0.0.1:0") as server:
        yield server.address


@contextmanager
def fake() -> Iterator[str]:
    with embedded(FakeDataPlane) as address:
        yield address


@contextmanager
def sim() -> Iterator[str]:
    from p4reduce_targets.sim import load

    with embedded(load) as address:
        yield address


@contextmanager
def bmv2() -> Iterator[str]:
    if shutil.which(BINARY) is None:
        pytest.skip(f"{BINARY} is not on PATH")
    with Bmv2(grpc_address="127.0.0.1:0", cpu_port=CPU_PORT) as process:
        yield process.address
