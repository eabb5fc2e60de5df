# SPDX-License-Identifier: Apache-2.0
"""The packets between the controller and the aggregator program: RESET, QUERY, ABORT and HELLO."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, SHORT_HELLO, Op
from p4reduce.protocol.packet import Codec, Packet, abort, hello
from p4reduce_controller.base.clock import LONGEST_WAIT, Clock
from p4reduce_controller.p4runtime.link import Link
from p4reduce_controller.p4runtime.resets import WINDOW, ResetBatch, time_for
from p4reduce_controller.switches.aggregator import HalfState, Heard, Layout, Placement, SwitchError
from p4reduce_controller.switches.frames import Endpoint, build, nonce_at_a_glance, parse, vlan_of

RESET_TIMEOUT = 30.0  # seconds, to which the time for the slots is added, since a switch may be stopped for a while
QUERY_TIMEOUT = 2.0  # seconds for all attempts of a QUERY
QUERY_RETRY = 0.25  # seconds from one attempt to the next
ABORT_COPIES = 3  # each copy may be lost; the service tells ranks too
ABORT_SPACING = 0.02  # seconds between the copies, which a single burst of loss should not hit together


@dataclass
class _Reset:
    """The RESETs of a job.

    `news`: set by an acknowledgement of this job, or of any job while this one is sending its first attempts.
    """

    batch: ResetBatch
    news: asyncio.Event = field(default_factory=asyncio.Event)
    limit: float = 0.0
    deadline: float = 0.0

    def begin(self, limit: float) -> None:
        """Start the time limit, in seconds."""
        self.clock = Clock()
        self.limit, self.deadline = limit, self.clock() + limit


@dataclass(eq=False, repr=False)
class CpuChannel:
    """The channel of packet-ins and packet-outs of one switch. `on_packet` must be given every packet-in.

    `target`: the switch's P4Runtime server.
    `address`: the address of its aggregator.
    `link`: returns its connection, or raises SwitchUnavailable if there is none.
    `on_hello`: is given every HELLO whose nonce `awaits` knows. Anybody can send other HELLOs at any rate, and these
    must not delay acknowledgements.
    `drops`: counts dropped and unanswered packets by reason.
    """

    target: str
    address: Endpoint
    layout: Layout
    link: Callable[[], Link]
    on_hello: Callable[[Heard], None]
    awaits: Callable[[int], bool]
    drops: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._codec = Codec(self.layout.lanes, self.layout.block_size)
        self._every_lane = (1 << self.layout.lanes) - 1
        # Held by the job that is sending its first attempts; several jobs may wait for acknowledgements.
        self._resetting = asyncio.Lock()
        self._resets: dict[tuple[int, int], _Reset] = {}
        self._beginning: _Reset | None = None
        self._queries: dict[int, asyncio.Future[HalfState]] = {}
        self._query_ids = count(1)

    async def say_hello(
        self, port: int, to: Endpoint, worker: int, nonce: int, *, short: bool = False, vlan: int = 0
    ) -> None:
        if short:
            packet = hello(self.layout.lanes, nonce, worker=worker, seq=SHORT_HELLO)
        else:
            every = self._every_lane
            packet = hello(self.layout.lanes, nonce, worker=worker, active=every, present=every, values=self._zeros())
        frame = build(packet, self.address, to, vlan)
        await self.link().send_packet(frame, through_pipeline=0, padding=0, egress_port=port, multicast_group=0)

    async def reset(self, job: Placement, timeout: float = 0.0) -> None:
        """Reset every half of the job's slots, and wait until all are acknowledged. Raises SwitchError.

        timeout: the seconds that it may take if they are more than `RESET_TIMEOUT`; the time for the slots is added.

        Jobs share the switch's queue to the controller. So a job starts once the jobs before it have sent all of
        theirs.
        """
        key = (job.job, job.generation)
        mine = self._resets[key] = _Reset(ResetBatch(*key, job.slots, job.first_seq, self.layout.lanes, job.rounds))
        try:
            async with self._resetting:
                mine.begin(max(RESET_TIMEOUT, timeout) + time_for(job.slots.count))
                self._beginning = mine
                while not mine.batch.all_sent:
                    await self._send_resets(mine, WINDOW - sum(one.batch.under_way for one in self._resets.values()))
            while not mine.batch.done:
                await self._send_resets(mine, 0)
        finally:
            del self._resets[key]

    async def _send_resets(self, mine: _Reset, room: int) -> None:
        """Send what is due and up to `room` first attempts, then wait for news or until more is due."""
        now = mine.clock()
        if now >= mine.deadline:
            missing = len(mine.batch.missing)
            raise SwitchError(
                f"the switch at {self.target} did not acknowledge {missing} of {mine.batch.count} RESETs "
                f"within {mine.limit:g} s"
            )
        for packet in mine.batch.to_send(now, room):
            self.drops["reset_unanswered"] += packet.fingerprint > 1  # the number of the attempt
            await self._send(packet)
        with contextlib.suppress(asyncio.TimeoutError):
            wait = min(mine.batch.next_time(), mine.deadline) - mine.clock()
            await asyncio.wait_for(mine.news.wait(), max(0.0, min(wait, LONGEST_WAIT)))
        mine.news.clear()

    def _reset_acknowledged(self, packet: Packet) -> None:
        mine = self._resets.get((packet.job, packet.generation))
        if mine is not None and mine.batch.acknowledged(packet):
            mine.news.set()
            if self._beginning is not None:  # the acknowledgement has made room for it
                self._beginning.news.set()

    async def abort(self, job: Placement, rank: int | None, reason: int) -> None:
        secret = {"seq": job.abort_secret >> 32, "fingerprint": job.abort_secret & 0xFFFFFFFF}
        packet = abort(rank, reason, self.layout.lanes, job=job.job, generation=job.generation, **secret)
        for copy in range(ABORT_COPIES):
            if copy:
                await asyncio.sleep(ABORT_SPACING)
            await self._send(packet, group=job.group)

    async def query(self, half: int) -> HalfState:
        """Return the state of a slot half. Raise SwitchError, or ValueError for a half that does not exist."""
        if not 0 <= half < 2 * self.layout.slots:
            raise ValueError(f"half={half}: the switch has halves 0 to {2 * self.layout.slots - 1}")
        # The answer has the job number and generation of the query, so the generation serves as the query's number.
        number = next(self._query_ids) % 2**16
        answer: asyncio.Future[HalfState] = asyncio.get_running_loop().create_future()
        self._queries[number] = answer
        # The sums replace the zeros, because the switch cannot make a packet much longer.
        packet = Packet(
            Op.QUERY,
            generation=number,
            slot=half,
            active=self._every_lane,
            present=self._every_lane,
            keys=(NO_KEY,) * self.layout.lanes,
            values=self._zeros(),
        )
        try:
            for _ in range(round(QUERY_TIMEOUT / QUERY_RETRY)):
                await self._send(packet)
                done, _ = await asyncio.wait([answer], timeout=QUERY_RETRY)
                if done:
                    return answer.result()
                self.drops["query_unanswered"] += 1
            raise SwitchError(f"the switch at {self.target} did not answer a QUERY for {QUERY_TIMEOUT:g} s")
        finally:
            del self._queries[number]

    def on_packet(self, frame: bytes, metadata: Callable[[], dict[str, Any]]) -> None:
        """Handle a packet-in.

        `metadata` decodes its header, which takes longer than the rest, so it is called only if needed.
        """
        nonce = nonce_at_a_glance(frame)
        if nonce is not None and not self.awaits(nonce):
            self.drops["hello_of_nobody"] += 1
            return
        parsed = parse(frame, self._codec)
        if parsed is None:
            self.drops["malformed"] += 1
            return
        sender, packet = parsed
        if packet.op == Op.HELLO:
            port = metadata()["ingress_port"]
            full = packet.present == self._every_lane
            short = not full and packet.seq == SHORT_HELLO
            claims = packet.job, packet.generation, packet.worker, packet.nonce
            self.on_hello(Heard(port, sender, *claims, full, short, vlan=vlan_of(frame)))
        elif packet.op == Op.RESET:
            self._reset_acknowledged(packet)
        elif packet.op == Op.QUERY and packet.generation in self._queries:
            answer = self._queries[packet.generation]
            if not answer.done():
                answer.set_result(HalfState(packet.slot, packet.seq, metadata()["bitmap"], packet.fingerprint))

    async def _send(self, packet: Packet, group: int = 0) -> None:
        us = Endpoint(self.address.mac, self.address.ip, AGGREGATION_PORT)
        frame = build(packet, source=us, destination=us)
        await self.link().send_packet(frame, through_pipeline=1, padding=0, egress_port=0, multicast_group=group)

    def _zeros(self) -> npt.NDArray[np.int32]:
        return np.zeros((self.layout.lanes, self.layout.block_size), np.int32)
