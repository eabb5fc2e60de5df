# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the host's side of the protocol is used: the one in C, or the readable one in Python."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Literal

from p4reduce.engine.engine import Engine
from p4reduce.engine.python_engine import PythonEngine
from p4reduce.fastpath.engine import NativeEngine, link_of
from p4reduce.fastpath.library import LibraryError, UnusableLibraryError, simd_in_use
from p4reduce.local.engine import LocalEngine, SharingEngine
from p4reduce.protocol import Membership, Worker
from p4reduce.transport import SharedTransport, Transport

VARIABLE = "P4REDUCE_BACKEND"
NAMES = ("c", "python")


@dataclass(frozen=True)
class Backend:
    """What is used, and why."""

    name: Literal["c", "python"]
    why: str
    simd: str = ""
    """The instructions that the C implementation uses on this processor."""

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.simd})' if self.simd else ''}: {self.why}"


def backend() -> Backend:
    """Which implementation new communicators use, and why: P4REDUCE_BACKEND's, else C where it is installed.

    Transports that it does not have use Python's. Raises ValueError for an unknown name, LibraryError where C is asked
    for and cannot be used.
    """
    name, why = os.environ.get(VARIABLE), f"{VARIABLE} says so"
    if not name:
        try:
            return Backend("c", "the C library is installed", simd_in_use())
        except LibraryError as error:
            if isinstance(error, UnusableLibraryError):
                warnings.warn(f"{error}; p4reduce runs in Python, which is slower: install it again", stacklevel=2)
            return Backend("python", str(error))
    if name == "c":
        return Backend("c", why, simd_in_use())
    if name == "python":
        return Backend("python", why)
    raise ValueError(f"{VARIABLE}={name!r}: accepted are {', '.join(NAMES)}")


def check_threads(threads: int, transport: str) -> None:
    """Raise ValueError where a rank's engine cannot have so many threads with this transport."""
    used = backend()
    if threads > 1 and (used.name != "c" or transport != "udp"):
        raise ValueError(
            f"threads={threads} with the transport {transport!r} and the backend {used}: accepted is 1; more than 1 "
            "needs the transport 'udp' and the backend 'c'"
        )


def start_engine(
    transport: Transport | SharedTransport,
    membership: Membership,
    *,
    switch: str,
    name: str,
    local: bool,
    timeout: float,
) -> Engine:
    """Start the engine that runs a communicator's operations. It owns `transport` from then on.

    switch: its address, for error messages. name: of the thread. local: whether all ranks share their host's memory.
    timeout: seconds until the ranks must have come that share memory with this one.
    """
    if local or membership.hosts:
        engine = LocalEngine if local else SharingEngine
        return engine(transport, membership, switch=switch, name=name, timeout=timeout)
    if isinstance(transport, SharedTransport) or (backend().name == "c" and link_of(transport) is not None):
        return NativeEngine(transport, membership, switch=switch, name=name)
    return PythonEngine(transport, Worker(membership), switch=switch, name=name)
