# SPDX-License-Identifier: Apache-2.0
"""The Python and the C worker side by side: they are told the same, and must do the same."""

from __future__ import annotations

from p4reduce.fastpath.worker import Worker as CWorker
from p4reduce.protocol import Membership, Operation, Stats, Timing
from p4reduce.protocol import Worker as PythonWorker


class Pair:
    """Passes every call to both workers, and checks that they agree after it. Callers see the C worker's results."""

    def __init__(self, membership: Membership, *, timing: Timing | None = None) -> None:
        self.membership = membership
        self.python = PythonWorker(membership, timing=timing)
        self.c = CWorker(membership, timing=timing)
        self._twins: list[tuple[Operation, Operation]] = []

    @property
    def stats(self) -> Stats:
        return self.c.stats

    @property
    def failure(self) -> BaseException | None:
        return self.c.failure

    @property
    def idle(self) -> bool:
        return self.c.idle

    def hello(self, nonce: int) -> bytes:
        payload = self.c.hello(nonce)
        assert payload == self.python.hello(nonce)
        return payload

    @property
    def submitted(self) -> int:
        assert self.c.submitted == self.python.submitted
        return self.c.submitted

    def next_first_seq(self) -> int:
        first_seq = self.c.next_first_seq()
        assert first_seq == self.python.next_first_seq()
        return first_seq

    def begin_anew(self, slots: int, first_seq: int) -> None:
        self.python.begin_anew(slots, first_seq)
        self.c.begin_anew(slots, first_seq)
        self.membership = self.c.membership
        assert self.membership == self.python.membership
        self._agree()

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
        self._twins.append((operation, twin))
        self.python.submit(twin, now)
        self.c.submit(operation, now)
        self._agree()

    def receive(self, payload: bytes | bytearray | memoryview, now: float) -> None:
        self.python.receive(payload, now)
        self.c.receive(payload, now)
        self._agree()

    def tick(self, now: float) -> None:
        self.python.tick(now)
        self.c.tick(now)
        self._agree()

    def fail(self, error: BaseException) -> None:
        self.python.fail(error)
        self.c.fail(error)
        self._agree()

    def take_packets(self) -> list[bytes]:
        packets = self.c.take_packets()
        assert packets == self.python.take_packets()
        self._agree()
        return packets

    def next_deadline(self) -> float | None:
        return self.c.next_deadline()

    def awaited(self) -> tuple[int, ...]:
        awaited = self.c.awaited()
        assert awaited == self.python.awaited()
        return awaited

    def _agree(self) -> None:
        assert self.c.next_deadline() == self.python.next_deadline()
        assert self.c.idle == self.python.idle
        assert self.c.awaited() == self.python.awaited()
        mine, reference = self.c.failure, self.python.failure
        assert type(mine) is type(reference)
        assert str(mine) == str(reference)
        assert getattr(mine, "rank", None) == getattr(reference, "rank", None)
        assert self.c.stats == self.python.stats
        for operation, twin in self._twins:
            assert operation.done == twin.done
            assert type(operation.error) is type(twin.error)
            if operation.done and operation.error is None:
                assert operation.data.tobytes() == twin.data.tobytes()
                assert operation.residual is None or operation.residual.tobytes() == twin.residual.tobytes()
        self._twins = [pair for pair in self._twins if not pair[0].done]
