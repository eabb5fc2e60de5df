# SPDX-License-Identifier: Apache-2.0
"""The C worker, with the methods of `p4reduce.protocol.Worker`.

Given the same events, the two must send the same packets.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import check, ranks, request_of, to_c, to_exception, to_stats
from p4reduce.protocol import Membership, Operation, Stats, Timing
from tests.support.c_library import Payload, whole_library

_AT_ONCE = 64


class Worker:
    """A worker in C, with the same methods as `p4reduce.protocol.Worker`."""

    def __init__(
        self, membership: Membership, *, timing: Timing | None = None, share: tuple[int, int] | None = None
    ) -> None:
        """Make a worker. `share`: its first slot and its number of slots, if it has only a share of the job's."""
        self.membership = membership
        self._library = whole_library()
        error = c.Error.make()
        c_timing = c.Timing.make(**asdict(timing)) if timing is not None else None
        own = to_c(membership)
        if share is not None:
            own.all_slots, (own.first_slot, own.slots) = membership.slots, share
        handle = self._library.p4reduce_worker_new(
            ctypes.byref(own), ctypes.byref(c_timing) if c_timing is not None else None, error
        )
        if not handle:
            raise to_exception(error)
        self._handle = ctypes.c_void_p(handle)
        self._finalizer = weakref.finalize(self, self._library.p4reduce_worker_free, self._handle)
        self._operations: dict[int, Operation] = {}
        self._given_failure: BaseException | None = None
        self._failure: BaseException | None = None
        self._number = 0
        self._on_end = c.OnEnd(self._ended)
        self._payloads = (Payload * _AT_ONCE)()

    @property
    def stats(self) -> Stats:
        stats = c.Stats.make()
        self._library.p4reduce_worker_stats(self._handle, stats)
        return to_stats(stats)

    @property
    def failure(self) -> BaseException | None:
        if self._failure is None:
            error = c.Error.make()
            if self._library.p4reduce_worker_failure(self._handle, error) != c.OK:
                self._failure = self._to_exception(error)
        return self._failure

    @property
    def idle(self) -> bool:
        return bool(self._library.p4reduce_worker_idle(self._handle))

    def hello(self, nonce: int) -> bytes:
        room = 18 + 4 * self.membership.lanes
        payload = ctypes.create_string_buffer(room)
        length = self._library.p4reduce_worker_hello(self._handle, nonce, payload, room)
        return payload.raw[:length]

    @property
    def submitted(self) -> int:
        return self._number

    def next_first_seq(self) -> int:
        first_seq: int = self._library.p4reduce_worker_next_first_seq(self._handle)
        return first_seq

    def begin_anew(self, slots: int, first_seq: int) -> None:
        error = c.Error.make()
        check(self._library.p4reduce_worker_begin_anew(self._handle, slots, first_seq, error), error)
        self.membership = replace(self.membership, slots=slots, first_seq=first_seq)

    def set_aggregators(self, aggregators: int) -> None:
        error = c.Error.make()
        check(self._library.p4reduce_worker_set_aggregators(self._handle, aggregators, error), error)

    def suspend(self, aggregator: int) -> list[int]:
        rounds = (ctypes.c_uint32 * self.membership.slots)()
        count = self._library.p4reduce_worker_suspend(self._handle, aggregator, rounds, len(rounds))
        return list(rounds[:count])

    def rewind(self, aggregator: int, rounds: Sequence[int], now: float) -> None:
        error, each = c.Error.make(), (ctypes.c_uint32 * len(rounds))(*rounds)
        check(self._library.p4reduce_worker_rewind(self._handle, aggregator, each, len(rounds), now, error), error)

    def submit(self, operation: Operation, now: float) -> None:
        self._number += 1
        request = request_of(operation)
        request.context = self._number
        request.on_end = self._on_end
        self._operations[self._number] = operation
        error = c.Error.make()
        try:
            check(self._library.p4reduce_worker_submit(self._handle, request, now, error), error)
        except BaseException:
            self._operations.pop(request.context, None)
            raise

    def receive(self, payload: bytes | bytearray | memoryview, now: float, marked: bool = False) -> None:
        receive = self._library.p4reduce_worker_receive_marked if marked else self._library.p4reduce_worker_receive
        receive(self._handle, bytes(payload), len(payload), now)

    def tick(self, now: float) -> None:
        self._library.p4reduce_worker_tick(self._handle, now)

    def take_packets(self) -> list[bytes]:
        packets: list[bytes] = []
        while count := self._library.p4reduce_worker_take(self._handle, self._payloads, _AT_ONCE):
            packets += [ctypes.string_at(one.bytes, one.length) for one in self._payloads[:count]]
        return packets

    def next_deadline(self) -> float | None:
        deadline: float = self._library.p4reduce_worker_deadline(self._handle)
        return None if math.isinf(deadline) else deadline

    def awaited(self) -> tuple[int, ...]:
        awaited = c.Ranks()
        self._library.p4reduce_worker_awaited(self._handle, awaited)
        return ranks(list(awaited))

    def unanswered(self, now: float, timeout: float) -> int | None:
        half: int = self._library.p4reduce_worker_unanswered(self._handle, now, timeout)
        return None if half < 0 else half

    def is_impossible(self, half: int, seq: int) -> bool:
        return bool(self._library.p4reduce_worker_is_impossible(self._handle, half, seq))

    def fail(self, error: BaseException) -> None:
        if self._given_failure is None:
            self._given_failure = error
        self._library.p4reduce_worker_fail(self._handle, str(error).encode())

    def _ended(self, number: int, error: ctypes._Pointer[c.Error]) -> None:
        failure = None
        if error:
            if self._failure is None:
                self._failure = self._to_exception(error.contents)
            failure = self._failure
        self._operations.pop(number).finish(failure)

    def _to_exception(self, error: c.Error) -> BaseException:
        if error.status == c.FAILED and self._given_failure is not None:
            return self._given_failure
        return to_exception(error)
