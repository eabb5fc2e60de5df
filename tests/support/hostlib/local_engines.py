# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job in one process, whose engines reduce in shared memory."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from p4reduce.errors import P4ReduceError
from p4reduce.local.engine import LocalEngine
from p4reduce.protocol import Membership, Operation
from p4reduce.transport import Transport


def without_standstill(error: BaseException | None) -> str:
    """Return the message of a timeout without the part about a busy machine that stopped this process meanwhile."""
    return re.sub(r"; this rank's own process was stopped for \d+\.\d s$", "", str(error))


class NoTransport(Transport):
    """A transport for an engine that must send nothing. Sending or receiving raises AssertionError."""

    trouble = None
    local_address = ("127.0.0.1", 1)

    def send(self, payloads: Sequence[bytes]) -> int:
        raise AssertionError(f"{len(payloads)} packets")

    def receive(self) -> list[bytes]:
        raise AssertionError("asked for packets")

    def fileno(self) -> int:
        raise AssertionError("asked for a socket")

    def quietest(self) -> None:
        return None

    def close(self) -> None:
        pass


class Ranks:
    def __init__(self, engines: Sequence[LocalEngine], memberships: Sequence[Membership] = ()) -> None:
        self.engines = engines
        self.memberships = memberships
        self.operations = 0
        """The number of operations that all ranks have begun."""

    def begin(self, rank: int, operation: Operation, timeout: float = 60.0) -> PendingOperation:
        pending_operation = PendingOperation()
        self.engines[rank].submit(operation, name=f"operation of {rank}", timeout=timeout, on_end=pending_operation)
        return pending_operation

    def reduce(self, operations: Sequence[Operation]) -> None:
        """Run one operation at every rank. Raises its error, if any."""
        self.operations += 1
        for pending_operation in [self.begin(rank, operation) for rank, operation in enumerate(operations)]:
            error = pending_operation.wait()
            if error is not None:
                raise error


class PendingOperation:
    """An operation that is under way; `wait` returns how it has ended."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        self._error = error
        self._ended.set()

    def wait(self) -> BaseException | None:
        assert self._ended.wait(60), "an operation has not ended"
        return self._error


def memberships(world_size: int, block_size: int = 64) -> list[Membership]:
    """Return the memberships of a new job's ranks."""
    shape = {"slots": 8, "lanes": 4, "block_size": block_size, "abort_secret": secrets.randbits(64)}
    groups = [tuple(range(first, min(first + 16, world_size))) for first in range(0, world_size, 16)]
    return [
        Membership(
            job=1, generation=1, rank=rank, world_size=world_size, first_seq=0,
            peers=groups[rank // 16] if world_size > 32 else (), **shape,
        )
        for rank in range(world_size)
    ]  # fmt: skip


@contextlib.contextmanager
def ranks(world_size: int, block_size: int = 64) -> Iterator[Ranks]:
    def start(membership: Membership) -> LocalEngine:
        return LocalEngine(NoTransport(), membership, switch="", name=f"rank {membership.rank}")

    everyone = memberships(world_size, block_size)
    with ThreadPoolExecutor(world_size) as pool:
        engines = list(pool.map(start, everyone))
    try:
        yield Ranks(engines, everyone)
    finally:
        for engine in engines:
            engine.close(P4ReduceError("the test is over"))
