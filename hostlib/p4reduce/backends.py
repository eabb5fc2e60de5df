# SPDX-License-Identifier: Apache-2.0
"""The choice between the two implementations of the protocol's host side: the fast one in C, and the one in Python."""

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
    """The implementation that is used, and why."""

    name: Literal["c", "python"]
    why: str
    simd: str = ""
    """The instructions that the C implementation uses on this processor."""

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.simd})' if self.simd else ''}: {self.why}"


def backend() -> Backend:
    """Return the implementation that new communicators use, and why.

    P4REDUCE_BACKEND chooses it. By default it is C, if the library is installed, otherwise Python. Transports that C
    does not have use Python. Raises ValueError for an unknown name, and LibraryError if C is asked for and cannot be
    used.
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
    """Raise ValueError if a rank's engine cannot have this number of threads with this transport."""
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

    switch: its address, for error messages. name: the thread's name. local: whether all ranks are on one host and share
    its memory. timeout: seconds in which the ranks that share memory with this one must come.
    """
    if local or membership.hosts:
        engine = LocalEngine if local else SharingEngine
        return engine(transport, membership, switch=switch, name=name, timeout=timeout)
    if isinstance(transport, SharedTransport) or (backend().name == "c" and link_of(transport) is not None):
        return NativeEngine(transport, membership, switch=switch, name=name)
    return PythonEngine(transport, Worker(membership), switch=switch, name=name)
