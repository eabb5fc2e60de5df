# SPDX-License-Identifier: Apache-2.0
"""Stacks and other child processes whose switches are Tofinos behind BF Runtime."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from p4reduce_bench.processes.children import Child, ChildProcesses
from tests.support.cluster.stack import Stack
from tests.support.dataplane.targets import Unavailable
from tests.support.own_network import Namespace
from tests.support.tofino.builds import SLOTS

from .programs import write_folder

PORT = 8  # the first one that the boards of all profiles have
ADDRESS = "127.0.0.1:31314"

_folder = tempfile.TemporaryDirectory(prefix="p4reduce-bfrt-")


@functools.cache
def program(profile: str, slots: int = SLOTS) -> Path:
    """Return the folder of a profile's program. Raises Unavailable if p4c is missing."""
    folder = Path(_folder.name) / f"{profile}-{slots}"
    folder.mkdir(exist_ok=True)
    return write_folder(profile, folder, slots)


class OnTofino(ChildProcesses):
    """Child processes of which those that run `p4reduce switch` are Tofinos, whose program controllers get as well.

    The switches' --target must be the profile.
    """

    def __init__(self, program: Path) -> None:
        super().__init__()
        self.program = program

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        command = arguments[:1] if module == "p4reduce" else ()
        if command == ("switch",):
            module = "tests.support.bfrt.tofino"
            arguments = (*arguments, "--program", str(self.program))
        elif command == ("controller",):
            arguments = (*arguments, "--pipeline", str(self.program))
        return super().start(name, module, *arguments, environment=environment)


class TofinoStack(OnTofino, Stack):
    """A stack whose switches are Tofinos."""

    def __init__(self, profile: str, *arguments: Any, **options: Any) -> None:
        self.program = program(profile)
        Stack.__init__(self, profile, *arguments, **options)


@contextmanager
def tofino_over_udp(profile: str, *options: str, **shape: Any) -> Iterator[TofinoStack]:
    """Run a Tofino with one UDP port for all ranks, in a namespace of its own. Skips the test if it cannot.

    options: of the controller; shape: as for Stack.
    """
    with closing(Namespace()) as namespace:
        need(profile)
        ports = [f"{PORT}=udp:{ADDRESS}"]
        with TofinoStack(profile, ports, ADDRESS, enter=namespace.entered, options=options, **shape) as stack:
            yield stack


def need(profile: str) -> Path:
    """Return the folder of a profile's program. Skips the test if p4c is missing."""
    try:
        return program(profile)
    except Unavailable as missing:
        pytest.skip(str(missing))
