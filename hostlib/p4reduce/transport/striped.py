# SPDX-License-Identifier: Apache-2.0
"""Transports of several parts: one part for each aggregator, or for each engine thread, that has some of the slots."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

from p4reduce.protocol.aggregators import from_aggregator, to_aggregator
from p4reduce.protocol.constants import Op
from p4reduce.protocol.header import JOB, SLOT
from p4reduce.transport.base import Switch, Transport

_LARGEST_HALF = 0xFFFF


class StripedTransport:
    """A transport to several aggregators. Each packet goes to the aggregator of its slot.

    The last of them may be spares, which have no slots until those of a lost aggregator are redirected to them.

    In packets to and from an aggregator the slot field is the aggregator's; the worker sees the job's. So it is with
    the job's number and generation, of which the worker sees those of the first aggregator. A HELLO goes to every
    aggregator, because each must learn of the rank.
    """

    def __init__(
        self,
        parts: Sequence[Transport],
        switches: Sequence[Switch],
        clock: Callable[[], float] = time.monotonic,
        *,
        jobs: Sequence[tuple[int, int]] = (),
        spares: int = 0,
    ) -> None:
        """Take over the transports `parts`, one to each of `switches`.

        jobs: the job's number and generation at each of them; () if they are the same everywhere. spares: how many of
        them, the last ones, are spares.
        """
        self.parts = tuple(parts)
        self.switches = tuple(switches)
        self.jobs = tuple(jobs)
        self.spares = spares
        # XOR with a mask turns the worker's number and generation into those of the aggregator, and back. Any others
        # stay others.
        self._masks = [_packed(job) ^ _packed(jobs[0]) for job in jobs] or [0] * len(parts)
        self._via = list(range(len(parts)))  # the part that carries each aggregator's packets
        self._carried: list[dict[int, int]] = [{} for _ in parts]  # for each part, aggregators by job and generation
        self._clock = clock
        self._unanswered = [False] * len(parts)
        self._heard_at = [float("-inf")] * len(parts)
        self._full: Transport | None = None
        self._poll = select.epoll()
        self._by_descriptor = {part.fileno(): index for index, part in enumerate(parts)}
        for part in parts:
            self._poll.register(part, select.EPOLLIN)

    @property
    def aggregators(self) -> int:
        """Over how many aggregators the slots are striped."""
        return len(self.parts) - self.spares

    @property
    def trouble(self) -> OSError | None:
        return self.parts[self._quietest()].trouble

    @property
    def local_address(self) -> tuple[str, int]:
        return self.parts[self._quietest()].local_address

    def fileno(self) -> int:
        return self._poll.fileno()

    def send(self, payloads: Sequence[bytes]) -> int:
        if self._full is not None:
            self._poll.modify(self._full, select.EPOLLIN)
            self._full = None
        for sent, payload in enumerate(payloads):
            if payload[0] & 0xF == Op.HELLO:
                for part, mask in zip(self.parts, self._masks, strict=True):
                    part.send([_readdressed(payload, mask)])
                continue
            aggregator, half = to_aggregator(int.from_bytes(payload[SLOT], "big"), self.aggregators)
            via = self._via[aggregator]
            if not self.parts[via].send([_readdressed(payload, self._masks[aggregator], half)]):
                # An epoll descriptor never becomes writable. With EPOLLOUT set, it becomes readable when that transport
                # becomes writable.
                self._full = self.parts[via]
                self._poll.modify(self._full, select.EPOLLIN | select.EPOLLOUT)
                return sent
            self._unanswered[via] = True
        return len(payloads)

    def receive(self) -> list[bytes]:
        payloads: list[bytes] = []
        for descriptor, _ in self._poll.poll(0):
            part = self._by_descriptor[descriptor]
            arrived = self.parts[part].receive()
            if arrived:
                self._unanswered[part] = False
                self._heard_at[part] = self._clock()
            for payload in arrived:
                aggregator = self._carried[part].get(int.from_bytes(payload[JOB], "big"), part)
                if aggregator >= self.aggregators and (not payload or payload[0] & 0xF != Op.HELLO):
                    continue  # a spare carries no slots of its own
                half = from_aggregator(int.from_bytes(payload[SLOT], "big"), aggregator, self.aggregators)
                if half <= _LARGEST_HALF:  # otherwise no worker has sent it
                    payloads.append(_readdressed(payload, self._masks[aggregator], half))
        return payloads

    def redirect(self, aggregator: int, via: int, job: int, own: int) -> None:
        """Send the packets of an aggregator that is lost to the switch of another one, under another job number.

        job: number << 16 | generation in these packets. own: those in packets of the worker. Raises ValueError if there
        are no such aggregators, or `via` was lost itself.
        """
        known = aggregator in range(self.aggregators) and via in range(len(self.parts))
        if not known or aggregator == via or self._via[via] != via:
            raise ValueError(f"there are no aggregators {aggregator} and {via}")
        for carried in self._carried:  # it may have moved before
            for former in [job for job, one in carried.items() if one == aggregator]:
                del carried[former]
        self._via[aggregator] = via
        self._carried[via][job] = aggregator
        self._masks[aggregator] = job ^ own
        self._unanswered[aggregator] = False
        self.switches = tuple(self.switches[via] if at == aggregator else one for at, one in enumerate(self.switches))

    def quietest(self) -> tuple[Switch, float]:
        index = self._quietest()
        return self.switches[index], self._heard_at[index]

    def look_up_route(self) -> None:
        for part in self.parts:
            part.look_up_route()

    def keep(self, indices: Sequence[int], spares: int = 0) -> Transport:
        """Return a transport to some of the switches only, which replaces this one. Close the other parts.

        spares: how many of them, the last ones, are spares.
        """
        self._poll.close()
        for index, part in enumerate(self.parts):
            if index not in indices:
                part.close()
        if len(indices) == 1:
            return self.parts[indices[0]]
        kept = [self.parts[index] for index in indices]
        jobs = [self.jobs[index] for index in indices] if self.jobs else ()
        switches = [self.switches[index] for index in indices]
        return StripedTransport(kept, switches, self._clock, jobs=jobs, spares=spares)

    def close(self) -> None:
        self._poll.close()
        for part in self.parts:
            part.close()

    def _quietest(self) -> int:
        """Return the part that has left packets unanswered for longest; the one heard last if none has any."""
        owing = [index for index, unanswered in enumerate(self._unanswered) if unanswered]
        if owing:
            return min(owing, key=self._heard_at.__getitem__)
        return max(range(len(self.parts)), key=self._heard_at.__getitem__)


class SharedTransport:
    """The transports of a rank's engine threads. Each thread uses its own of `parts`."""

    def __init__(self, parts: Sequence[Transport]) -> None:
        """Take over the transports `parts`, one for each thread."""
        self.parts = tuple(parts)

    @property
    def local_address(self) -> tuple[str, int]:
        return self.parts[0].local_address

    def look_up_route(self) -> None:
        for part in self.parts:
            part.look_up_route()

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _packed(job: tuple[int, int]) -> int:
    number, generation = job
    return number << 16 | generation


def _readdressed(payload: bytes, mask: int, half: int | None = None) -> bytes:
    """Return the payload with its job and generation XORed, and with another half if one is given."""
    job = int.from_bytes(payload[JOB], "big") ^ mask
    slot = payload[SLOT] if half is None else half.to_bytes(2, "big")
    return type(payload)(payload[: JOB.start] + job.to_bytes(4, "big") + slot + payload[SLOT.stop :])
