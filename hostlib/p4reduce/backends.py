# SPDX-License-Identifier: Apache-2.0
"""Which implementation of the host's side of the protocol is used: the one in C, or the readable one in Python."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Literal

from p4reduce.engine.carrier import Carrier
from p4reduce.engine.engine import Engine
from p4reduce.fastpath.engine import NativeEngine, link_of
from p4reduce.fastpath.library import LibraryError, UnusableLibraryError
from p4reduce.fastpath.numbers import simd_in_use
from p4reduce.local.engine import MEETING_TIMEOUT_S, LocalEngine
from p4reduce.local.sharing import SharingEngine
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


def select_backend(name: str | None = None) -> Backend:
    """The implementation called `name`; by default P4REDUCE_BACKEND's, else C where it is installed.

    Raises ValueError for an unknown name, LibraryError where C is asked for and cannot be used.
    """
    why = "asked for"
    if name is None:
        name = os.environ.get(VARIABLE) or None
        why = f"{VARIABLE} says so"
    if name is None:
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
    raise ValueError(f"{VARIABLE if why != 'asked for' else 'backend'}={name!r}: accepted are {', '.join(NAMES)}")


def backend() -> Backend:
    """Which implementation new communicators use, and why. Transports that it does not have use Python's."""
    return select_backend()


def check_threads(threads: int, transport: str) -> None:
    """Raises ValueError where a rank's engine cannot have so many threads with this transport."""
    backend = select_backend()
    if threads > 1 and (backend.name != "c" or transport != "udp"):
        raise ValueError(
            f"threads={threads} with the transport {transport!r} and the backend {backend}: accepted is 1; more than 1 "
            "needs the transport 'udp' and the backend 'c'"
        )


def start_engine(transport: Transport | SharedTransport, membership: Membership, *, switch: str, name: str) -> Carrier:
    """Starts what carries a communicator's operations over `transport`, which it owns from then on.

    switch: its address, for error messages. name: of the thread.
    """
    if isinstance(transport, SharedTransport) or (select_backend().name == "c" and link_of(transport) is not None):
        return NativeEngine(transport, membership, switch=switch, name=name)
    return Engine(transport, Worker(membership), switch=switch, name=name)


def start_local_engine(
    transport: Transport | SharedTransport, membership: Membership, *, name: str, timeout: float
) -> LocalEngine:
    """Starts what carries a communicator's operations in the memory of the host that all ranks are on; for C alone.

    It owns the transport, which it does not use. timeout: seconds until all ranks must have come.
    """
    return LocalEngine(transport, membership, switch="", name=name, timeout=min(timeout, MEETING_TIMEOUT_S))


def start_sharing_engine(
    transport: Transport | SharedTransport, membership: Membership, *, switch: str, name: str, timeout: float
) -> SharingEngine:
    """Starts what carries a communicator's operations in one stream with those of other ranks of its host; for C alone.

    It owns the transport. timeout: seconds until these ranks must have come. The others are those of `start_engine`.
    """
    return SharingEngine(transport, membership, switch=switch, name=name, timeout=min(timeout, MEETING_TIMEOUT_S))
