# SPDX-License-Identifier: Apache-2.0
"""The worker of protocol tests: the Python worker, or the Python and the C worker side by side, which must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4reduce.protocol import Membership, Operation, Timing, Worker
from tests.support.protocol import c_worker

both = False
"""Whether `new_worker` returns a pair. The fixture `each_worker` sets it."""


def new_worker(membership: Membership, *, timing: Timing | None = None) -> Any:
    return (Pair if both else Worker)(membership, timing=timing)


def agreed(what: str, reference: Callable[[], Any], ours: Callable[[], Any]) -> Any:
    """Call both functions, assert that they agree, and return or raise what `ours` does."""
    (expected, wanted), (answer, error) = _outcome(reference), _outcome(ours)
    assert (type(error), str(error)) == (type(wanted), str(wanted)), what
    if error is not None:
        raise error
    assert answer == expected, what
    return answer


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


class Pair:
    """A Python and a C worker that get every call. After each call, they are compared.

    Callers see the results of the C worker.
    """

    def __init__(self, membership: Membership, *, timing: Timing | None = None) -> None:
        agreed("a new worker", lambda: self._make("python", Worker, membership, timing),
               lambda: self._make("c", c_worker.Worker, membership, timing))  # fmt: skip
        self._twins: list[tuple[Operation, Operation]] = []

    def _make(self, name: str, worker: Any, membership: Membership, timing: Timing | None) -> None:
        setattr(self, name, worker(membership, timing=timing))

    def __getattr__(self, name: str) -> Any:
        ours, reference = getattr(self.c, name), getattr(self.python, name)
        if not callable(ours):
            return ours

        def call(*arguments: Any) -> Any:
            answer = agreed(name, lambda: reference(*arguments), lambda: ours(*arguments))
            self._agree(name == "take_packets")
            return answer

        return call

    def submit(self, operation: Operation, now: float) -> None:
        residual = None if operation.residual is None else operation.residual.copy()
        twin = Operation(
            operation.data.copy(),
            dtype=operation.dtype,
            reduce_op=operation.reduce_op,
            divisor=operation.divisor,
            wire=operation.wire,
            residual=residual,
            read_only=operation.read_only,
            zeros=operation.zeros,
        )

        def submit(worker: Any, own: Operation) -> None:
            worker.submit(own, now)

        agreed("submit", lambda: submit(self.python, twin), lambda: submit(self.c, operation))
        self._twins.append((operation, twin))
        self._agree()

    def _agree(self, packets_are_taken: bool = False) -> None:
        assert self.c.idle == self.python.idle
        assert self.c.next_deadline() == self.python.next_deadline()
        if packets_are_taken:  # the C worker counts packets when they are taken, not when they fall due
            assert self.c.membership == self.python.membership
            assert self.c.stats == self.python.stats
            assert self.c.awaited() == self.python.awaited()
        mine, reference = self.c.failure, self.python.failure
        assert type(mine) is type(reference)
        assert str(mine) == str(reference)
        assert getattr(mine, "rank", None) == getattr(reference, "rank", None)
        for operation, twin in self._twins:
            assert operation.done == twin.done
            assert type(operation.error) is type(twin.error)
            if operation.done and operation.error is None:
                assert operation.data.tobytes() == twin.data.tobytes()
                assert operation.residual is None or operation.residual.tobytes() == twin.residual.tobytes()
        self._twins = [pair for pair in self._twins if not pair[0].done]
