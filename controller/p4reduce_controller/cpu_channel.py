# SPDX-License-Identifier: Apache-2.0
"""What the controller and the aggregator program say to each other in packets: RESET, QUERY, ABORT and HELLO."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, NOBODY, SHORT_HELLO, Op
from p4reduce_controller.aggregator import HalfState, Heard, Layout, Placement, SwitchError
from p4reduce_controller.clock import LONGEST_WAIT, Clock
from p4reduce_controller.frames import Aggregation, Endpoint, build, hello_nonce, nonce_at_a_glance, parse
from p4reduce_controller.link import Link
from p4reduce_controller.resets import ResetBatch, time_for

RESET_TIMEOUT = 30.0  # besides what so many take: a switch may stand still for a while
QUERY_TIMEOUT = 2.0
QUERY_RETRY = 0.25
ABORT_COPIES = 3  # each may be lost on its way; ranks also hear it from the service
ABORT_SPACING = 0.02


class CpuChannel:
    """Of the switch at `target`, whose aggregator is at `address`. `on_packet` has to be given every packet-in.

    `link` gives its connection, and raises SwitchUnavailable where there is none. `heard` is told of every HELLO whose
    nonce `awaits` knows: anybody can send others, as fast as he likes, and they must not hold up acknowledgements.
    """

    def __init__(
        self,
        target: str,
        address: Endpoint,
        layout: Layout,
        link: Callable[[], Link],
        heard: Callable[[Heard], None],
        awaits: Callable[[int], bool],
        drops: Counter[str] | None = None,
    ) -> None:
        """drops: counts packets that came to nothing, by why."""
        self._target = target
        self._address = address
        self._layout = layout
        self._every_lane = (1 << layout.lanes) - 1
        self._link = link
        self._heard = heard
        self._awaits = awaits
        self._drops = Counter() if drops is None else drops
        self._resetting = asyncio.Lock()
        self._resets: dict[tuple[int, int], Callable[[Aggregation], None]] = {}
        self._queries: dict[int, asyncio.Future[HalfState]] = {}
        self._query_ids = count(1)

    async def say_hello(self, port: int, to: Endpoint, worker: int, nonce: int) -> None:
        lanes, size = self._layout.lanes, self._layout.block_size
        packet = Aggregation(
            Op.HELLO,
            worker=worker,
            fingerprint=nonce >> 32,
            active=self._every_lane,
            present=self._every_lane,
            keys=(nonce & 0xFFFFFFFF,) + (NO_KEY,) * (lanes - 1),
            values=(0,) * (lanes * size),
        )
        frame = build(packet, self._address, to)
        await self._link().send_packet(frame, through_pipeline=0, padding=0, egress_port=port, multicast_group=0)

    async def reset(self, job: Placement) -> None:
        """Every half of the job's slots, until all have acknowledged. Raises SwitchError.

        One job after the other: a batch sends what the switch can queue for the controller, and all share that queue.
        """
        async with self._resetting:
            await self._reset(job)

    async def _reset(self, job: Placement) -> None:
        batch = ResetBatch(job.job, job.generation, job.slots, job.first_seq, self._layout.lanes)
        news = asyncio.Event()

        def acknowledge(packet: Aggregation) -> None:
            if batch.acknowledged(packet):
                news.set()

        key = (job.job, job.generation)
        self._resets[key] = acknowledge
        clock = Clock()
        limit = RESET_TIMEOUT + time_for(job.slots.count)
        deadline = clock() + limit
        try:
            while not batch.done:
                now = clock()
                if now >= deadline:
                    missing, halves = len(batch.missing), 2 * job.slots.count
                    raise SwitchError(
                        f"the switch at {self._target} did not acknowledge {missing} of {halves} RESETs "
                        f"within {limit:g} s"
                    )
                for packet in batch.to_send(now):
                    self._drops["reset_unanswered"] += packet.fingerprint > 1  # the number of the attempt
                    await self._send(packet)
                with contextlib.suppress(asyncio.TimeoutError):
                    wait = min(batch.next_time(), deadline) - clock()
                    await asyncio.wait_for(news.wait(), max(0.0, min(wait, LONGEST_WAIT)))
                news.clear()
        finally:
            del self._resets[key]

    async def abort(self, job: Placement, worker: int | None, reason: int) -> None:
        """To the job's group."""
        packet = Aggregation(
            Op.ABORT,
            job=job.job,
            generation=job.generation,
            worker=NOBODY if worker is None else worker,
            seq=job.abort_secret >> 32,
            fingerprint=job.abort_secret & 0xFFFFFFFF,
            keys=(reason,) + (0,) * (self._layout.lanes - 1),
        )
        for copy in range(ABORT_COPIES):
            if copy:
                await asyncio.sleep(ABORT_SPACING)
            await self._send(packet, group=job.group)

    async def query(self, half: int) -> HalfState:
        """Raises SwitchError, or ValueError for a half that there is not."""
        if not 0 <= half < 2 * self._layout.slots:
            raise ValueError(f"half={half}: the switch has halves 0 to {2 * self._layout.slots - 1}")
        # The answer brings back job and generation as they were, so the generation tells answers apart.
        number = next(self._query_ids) % 2**16
        answer: asyncio.Future[HalfState] = asyncio.get_running_loop().create_future()
        self._queries[number] = answer
        # The sums come back in the room of the zeros: the switch cannot make a packet much longer.
        lanes, size = self._layout.lanes, self._layout.block_size
        packet = Aggregation(
            Op.QUERY,
            generation=number,
            slot=half,
            active=self._every_lane,
            present=self._every_lane,
            keys=(NO_KEY,) * lanes,
            values=(0,) * (lanes * size),
        )
        try:
            for _ in range(round(QUERY_TIMEOUT / QUERY_RETRY)):
                await self._send(packet)
                done, _ = await asyncio.wait([answer], timeout=QUERY_RETRY)
                if done:
                    return answer.result()
                self._drops["query_unanswered"] += 1
            raise SwitchError(f"the switch at {self._target} did not answer a QUERY for {QUERY_TIMEOUT:g} s")
        finally:
            del self._queries[number]

    def on_packet(self, frame: bytes, metadata: Callable[[], dict[str, Any]]) -> None:
        """`metadata`: takes the packet-in's header apart, which takes longer than anything here."""
        nonce = nonce_at_a_glance(frame)
        if nonce is not None and not self._awaits(nonce):
            self._drops["hello_of_nobody"] += 1
            return
        parsed = parse(frame, self._layout.lanes)
        if parsed is None:
            self._drops["malformed"] += 1
            return
        sender, packet = parsed
        if packet.op == Op.HELLO:
            port = metadata()["ingress_port"]
            full = packet.present == self._every_lane
            short = not full and packet.seq == SHORT_HELLO
            claims = packet.job, packet.generation, packet.worker, hello_nonce(packet)
            self._heard(Heard(port, sender, *claims, full, short))
        elif packet.op == Op.RESET and (packet.job, packet.generation) in self._resets:
            self._resets[packet.job, packet.generation](packet)
        elif packet.op == Op.QUERY and packet.generation in self._queries:
            answer = self._queries[packet.generation]
            if not answer.done():
                answer.set_result(self._half_state(packet, metadata()["bitmap"]))

    async def _send(self, packet: Aggregation, group: int = 0) -> None:
        us = Endpoint(self._address.mac, self._address.ip, AGGREGATION_PORT)
        frame = build(packet, source=us, destination=us)
        await self._link().send_packet(frame, through_pipeline=1, padding=0, egress_port=0, multicast_group=group)

    def _half_state(self, packet: Aggregation, bitmap: int) -> HalfState:
        size = self._layout.block_size
        values = tuple(packet.values[at : at + size] for at in range(0, len(packet.values), size))
        return HalfState(packet.slot, packet.seq, bitmap, packet.fingerprint, packet.keys, values)
