# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce_controller.aggregator import Layout, Placement
from p4reduce_controller.cpu_channel import CpuChannel
from p4reduce_controller.frames import Aggregation, Endpoint
from p4reduce_controller.pools import SlotRange
from p4reduce_controller.resets import RETRY, WINDOW, ResetBatch


def test_each_half_is_set_one_round_before_its_first() -> None:
    batch = ResetBatch(3, 9, SlotRange(5, 2), first_seq=0, lanes=4)
    packets = list(batch.to_send(0.0))
    assert {packet.slot: packet.seq for packet in packets} == {
        10: 0xFFFFFFFE,
        11: 0xFFFFFFFF,
        12: 0xFFFFFFFE,
        13: 0xFFFFFFFF,
    }
    assert {(p.op, p.job, p.generation, p.keys) for p in packets} == {(Op.RESET, 3, 9, (NO_KEY,) * 4)}
    assert list(batch.to_send(0.0)) == []
    assert batch.missing == (10, 11, 12, 13)


def test_no_more_are_under_way_than_the_switch_can_queue() -> None:
    batch = ResetBatch(1, 1, SlotRange(0, 100), first_seq=2, lanes=4)
    sent = list(batch.to_send(0.0))
    assert len(sent) == WINDOW
    for packet in sent[:5]:
        assert batch.acknowledged(packet)
    assert len(list(batch.to_send(0.0))) == 5


def test_what_others_acknowledge_is_no_news() -> None:
    batch = ResetBatch(1, 1, SlotRange(0, 1), first_seq=2, lanes=4)
    packet = next(iter(batch.to_send(0.0)))
    for stranger in (
        Aggregation(Op.RESET, 2, 1, slot=0, fingerprint=1),
        Aggregation(Op.RESET, 1, 2, slot=0, fingerprint=1),
        Aggregation(Op.RESET + 1, 1, 1, slot=0, fingerprint=1),
        Aggregation(Op.RESET, 1, 1, slot=7, fingerprint=1),
    ):
        assert not batch.acknowledged(stranger)
    assert batch.acknowledged(packet)
    assert not batch.acknowledged(packet)


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 0.5))
def test_when_done_no_reset_is_on_its_way(seed: int, slots: int, loss: float) -> None:
    """The way there and the way back keep the order of packets, lose some, and are slow now and then."""
    chance = random.Random(seed)
    batch = ResetBatch(1, 1, SlotRange(0, slots), first_seq=2, lanes=4)
    there: deque[Aggregation] = deque()
    back: deque[Aggregation] = deque()
    now = 0.0
    for _ in range(20_000):
        if batch.done:
            break
        for packet in batch.to_send(now):
            if chance.random() >= loss:
                there.append(packet)
        if there and chance.random() < 0.8:
            packet = there.popleft()
            if chance.random() >= loss:
                back.append(packet)
        if back and chance.random() < 0.8:
            batch.acknowledged(back.popleft())
        now += chance.choice((0.0, RETRY / 20, RETRY / 2))
    assert batch.done
    assert not there


def test_acknowledgements_may_come_between_packets() -> None:
    """Sending takes a while. What is acknowledged meanwhile is not sent again, which would wipe out a round."""
    batch = ResetBatch(1, 1, SlotRange(0, 2), first_seq=2, lanes=4)
    first = list(batch.to_send(0.0))
    again = []
    for packet in batch.to_send(RETRY):
        again.append(packet.slot)
        for earlier in first[1:3]:
            batch.acknowledged(earlier)
    assert again == [0, 3]
    assert batch.missing == (0, 3)


def test_jobs_share_what_the_switch_can_queue() -> None:
    """However many jobs are reset at a time, no more RESETs are under way than one batch sends."""

    class Network:
        """Answers one RESET after the other, as a slow switch does."""

        def __init__(self) -> None:
            self.waiting: list[bytes] = []
            self.most = 0

        async def send_packet(self, frame: bytes, **_: int) -> None:
            self.waiting.append(frame)
            self.most = max(self.most, len(self.waiting))

    async def work() -> int:
        network = Network()
        here = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
        layout = Layout(lanes=4, block_size=64, slots=128)
        channel = CpuChannel("here", here, layout, lambda: network, lambda _: None)  # type: ignore[arg-type, return-value]
        jobs = [Placement(number, 1, SlotRange(32 * number, 32), 2, ()) for number in range(4)]
        resets = [asyncio.create_task(channel.reset(job)) for job in jobs]
        while not all(reset.done() for reset in resets):
            await asyncio.sleep(0)
            if network.waiting:
                channel.on_packet(network.waiting.pop(0), {})
        await asyncio.gather(*resets)
        return network.most

    assert asyncio.run(asyncio.wait_for(work(), 10.0)) <= WINDOW
