# SPDX-License-Identifier: Apache-2.0
"""The workers of a rank's threads, each of which has a share of the job's slots, as one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from p4reduce.protocol import Membership, Operation, Stats
from p4reduce.protocol.aggregators import first_slot, slots_of, to_thread
from tests.support.protocol import c_worker
from tests.support.protocol.dealt_switch import with_half


class ThreadedWorker:
    """C workers with the methods of one worker that simulations call. Packets have the job's slots."""

    def __init__(self, membership: Membership, threads: int) -> None:
        self.membership = membership
        self._slots = [slots_of(thread, membership.slots, threads) for thread in range(threads)]
        self._firsts = [first_slot(thread, membership.slots, threads) for thread in range(threads)]
        shares = zip(self._firsts, self._slots, strict=True)
        self._workers = [c_worker.Worker(membership, share=share) for share in shares]
        self._aggregators = 1
        self._under_way: list[tuple[Operation, list[Operation]]] = []

    @property
    def stats(self) -> Stats:
        all_stats = [worker.stats for worker in self._workers]
        return replace(all_stats[0], foreign=sum(one.foreign for one in all_stats))

    @property
    def failure(self) -> BaseException | None:
        return next((worker.failure for worker in self._workers if worker.failure is not None), None)

    @property
    def idle(self) -> bool:
        return all(worker.idle for worker in self._workers)

    def set_aggregators(self, aggregators: int) -> None:
        self._aggregators = aggregators
        for worker in self._workers:
            worker.set_aggregators(aggregators)

    def suspend(self, aggregator: int) -> list[int]:
        return [seq for worker in self._workers for seq in worker.suspend(aggregator)]

    def rewind(self, aggregator: int, rounds: Sequence[int], now: float) -> None:
        left = list(rounds)
        for worker, slots in zip(self._workers, self._slots, strict=True):
            count = len(range(aggregator, slots, self._aggregators))
            worker.rewind(aggregator, left[:count], now)
            del left[:count]
        assert not left

    def submit(self, operation: Operation, now: float) -> None:
        """Let all workers execute the operation, on the same memory."""
        shards = [
            Operation(
                operation.data,
                dtype=operation.dtype,
                reduce_op=operation.reduce_op,
                divisor=operation.divisor,
                wire=operation.wire,
                residual=operation.residual,
                read_only=operation.read_only,
                zeros=operation.zeros,
            )
            for _ in self._workers
        ]
        self._under_way.append((operation, shards))
        for worker, shard in zip(self._workers, shards, strict=True):
            worker.submit(shard, now)
        self._finish()

    def receive(self, payload: bytes, now: float, marked: bool = False) -> None:
        thread, half = to_thread(int.from_bytes(payload[8:10], "big"), self.membership.slots, len(self._workers))
        self._workers[thread].receive(with_half(payload, half), now, marked)
        self._finish()

    def tick(self, now: float) -> None:
        for worker in self._workers:
            worker.tick(now)
        self._finish()

    def take_packets(self) -> list[bytes]:
        return [
            with_half(payload, int.from_bytes(payload[8:10], "big") + 2 * first)
            for worker, first in zip(self._workers, self._firsts, strict=True)
            for payload in worker.take_packets()
        ]

    def next_deadline(self) -> float | None:
        return min((when for worker in self._workers if (when := worker.next_deadline()) is not None), default=None)

    def _finish(self) -> None:
        for operation, shards in self._under_way:
            if not operation.done and all(shard.done for shard in shards):
                operation.finish(next((shard.error for shard in shards if shard.error is not None), None))
        self._under_way = [one for one in self._under_way if not one[0].done]
