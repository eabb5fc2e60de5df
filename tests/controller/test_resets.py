# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Packet
from p4reduce.protocol.packet import hello as hello_packet
from p4reduce_controller.p4runtime import cpu_channel
from p4reduce_controller.p4runtime.cpu_channel import CpuChannel
from p4reduce_controller.p4runtime.resets import RETRY_INTERVAL, WINDOW, ResetBatch
from p4reduce_controller.switches.aggregator import Heard, Layout, Placement, SwitchError
from p4reduce_controller.switches.frames import Endpoint, build, vlan_of
from p4reduce_controller.switches.pools import SlotRange

HERE = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)


def channel_to(
    network: Any, slots: int, heard: Callable[[Heard], None] = lambda _: None, awaited: Container[int] = ()
) -> CpuChannel:
    """Return the channel of a switch with so many slots. network: has the methods of a connection to the switch."""
    layout = Layout(lanes=4, block_size=64, slots=slots)
    return CpuChannel("here", HERE, layout, lambda: network, heard, awaited.__contains__)


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
        Packet(Op.RESET, 2, 1, slot=0, fingerprint=1),
        Packet(Op.RESET, 1, 2, slot=0, fingerprint=1),
        Packet(Op.RESET + 1, 1, 1, slot=0, fingerprint=1),
        Packet(Op.RESET, 1, 1, slot=7, fingerprint=1),
    ):
        assert not batch.acknowledged(stranger)
    assert batch.acknowledged(packet)
    assert not batch.acknowledged(packet)


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 0.5))
def test_when_done_no_reset_is_on_its_way(seed: int, slots: int, loss: float) -> None:
    """The way there and the way back keep the order of packets, lose some, and are slow now and then."""
    chance = random.Random(seed)
    batch = ResetBatch(1, 1, SlotRange(0, slots), first_seq=2, lanes=4)
    there: deque[Packet] = deque()
    back: deque[Packet] = deque()
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
        now += chance.choice((0.0, RETRY_INTERVAL / 20, RETRY_INTERVAL / 2))
    assert batch.done
    assert not there


def test_acknowledgements_may_come_between_packets() -> None:
    """Sending takes a while. What is acknowledged meanwhile is not sent again, which would wipe out a round."""
    batch = ResetBatch(1, 1, SlotRange(0, 2), first_seq=2, lanes=4)
    first = list(batch.to_send(0.0))
    again = []
    for packet in batch.to_send(RETRY_INTERVAL):
        again.append(packet.slot)
        for earlier in first[1:3]:
            batch.acknowledged(earlier)
    assert again == [0, 3]
    assert batch.missing == (0, 3)


def test_jobs_share_what_the_switch_can_queue() -> None:
    """No more RESETs are under way than one batch sends, however many jobs are reset at a time."""

    class Network:
        """A connection to a slow switch, which answers one RESET after the other."""

        def __init__(self) -> None:
            self.waiting: list[bytes] = []
            self.most = 0

        async def send_packet(self, frame: bytes, **_: int) -> None:
            self.waiting.append(frame)
            self.most = max(self.most, len(self.waiting))

    async def work() -> int:
        network = Network()
        channel = channel_to(network, 128)
        jobs = [Placement(number, 1, SlotRange(32 * number, 32), 2, ()) for number in range(4)]
        resets = [asyncio.create_task(channel.reset(job)) for job in jobs]
        while not all(reset.done() for reset in resets):
            await asyncio.sleep(0)
            if network.waiting:
                channel.on_packet(network.waiting.pop(0), dict)
        await asyncio.gather(*resets)
        return network.most

    assert asyncio.run(asyncio.wait_for(work(), 10.0)) <= WINDOW


class PacedSwitch:
    """A switch that acknowledges so many RESETs a second, by a clock that stands still between them."""

    def __init__(self, rate: float, slots: int) -> None:
        self.channel = channel_to(self, slots)
        self._rate = rate
        self._answered = 0

    def now(self) -> float:
        return self._answered / self._rate

    async def send_packet(self, frame: bytes, **_: int) -> None:
        self._answered += 1
        asyncio.get_running_loop().call_soon(self.channel.on_packet, frame, dict)


def reset_all(monkeypatch: pytest.MonkeyPatch, rate: float, slots: int, timeout: float = 0.0) -> None:
    async def work() -> None:
        switch = PacedSwitch(rate, slots)
        monkeypatch.setattr(cpu_channel, "Clock", lambda: switch.now)
        await asyncio.wait_for(switch.channel.reset(Placement(1, 1, SlotRange(0, slots), 2, ()), timeout), 60.0)

    asyncio.run(work())


def test_a_large_pool_has_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 halves at 100 a second."""
    reset_all(monkeypatch, 100, 2048)


def test_a_switch_that_is_too_slow_for_its_pool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SwitchError, match=r"the switch at here did not acknowledge \d+ of 4096 RESETs within 50.48 s"):
        reset_all(monkeypatch, 50, 2048)


@pytest.mark.parametrize("timeout", [5.0, 200.0])
def test_the_limit_is_that_of_the_ranks_if_it_is_longer(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """80 halves at one a second."""
    if timeout > 80:
        reset_all(monkeypatch, 1, 40, timeout)
    else:
        with pytest.raises(SwitchError, match=r"did not acknowledge \d+ of 80 RESETs within 30.4 s"):
            reset_all(monkeypatch, 1, 40, timeout)


def test_helloes_that_nobody_awaits_cost_next_to_nothing() -> None:
    """They are neither reported nor parsed, and acknowledgements of the switch do not wait behind them."""

    def unread() -> NoReturn:
        raise AssertionError("its metadata was read")

    heard: list[Heard] = []
    channel = channel_to(None, 1, heard.append, {7 << 32 | 5})
    for nonce in (0, 5, 7, 7 << 32, 5 << 32 | 7):
        channel.on_packet(hello(nonce), unread)
    assert heard == []
    channel.on_packet(hello(7 << 32 | 5), lambda: {"ingress_port": 3})
    assert [(one.port, one.sender.ip, one.worker, one.nonce) for one in heard] == [(3, "10.0.0.1", 2, 7 << 32 | 5)]


def hello(nonce: int, vlan: int = 0) -> bytes:
    worker = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000)
    return build(hello_packet(4, nonce, job=1, worker=2), worker, HERE, vlan)


def test_the_tag_of_a_hello_is_heard_and_answers_have_it() -> None:
    sent: list[bytes] = []

    async def send_packet(frame: bytes, **_: int) -> None:
        sent.append(frame)

    heard: list[Heard] = []
    channel = channel_to(SimpleNamespace(send_packet=send_packet), 1, heard.append, {5})
    for vlan in (20, 0):
        channel.on_packet(hello(5, vlan), lambda: {"ingress_port": 3})
        one = heard[-1]
        asyncio.run(channel.say_hello(one.port, one.sender, 0, 5, vlan=one.vlan))
    assert [one.vlan for one in heard] == [vlan_of(frame) for frame in sent] == [20, 0]


def test_a_job_does_not_wait_until_another_has_all_acknowledged() -> None:
    """A job uses the room that another leaves in the switch's queue, and does not wait for the other's lost RESET."""

    class Lossy:
        """A connection that loses the first RESET, and counts those of the second job."""

        def __init__(self) -> None:
            self.sent = 0

        async def send_packet(self, frame: bytes, **_: int) -> None:
            self.sent += 1
            if self.sent > 1:
                asyncio.get_running_loop().call_soon(channel.on_packet, frame, dict)

    async def work() -> list[str]:
        ended: list[str] = []

        async def reset(name: str, job: Placement) -> None:
            await channel.reset(job)
            ended.append(name)

        jobs = [Placement(number, 1, SlotRange(4 * number, 4), 2, ()) for number in (1, 2)]
        await asyncio.gather(reset("first", jobs[0]), reset("second", jobs[1]))
        return ended

    switch = Lossy()
    channel = channel_to(switch, 128)
    assert asyncio.run(asyncio.wait_for(work(), 10.0)) == ["second", "first"]


def test_what_answers_a_reset_of_an_earlier_batch_does_not_answer_that_of_a_later_one() -> None:
    """A move is tried again until it succeeds, and an answer to an earlier try must not end the later one.

    The earlier try's RESETs may still be on their way to a slow switch, where they would wipe out rounds of ranks that
    have gone on.
    """
    earlier, later = (ResetBatch(3, 1, SlotRange(4, 4), 500, 4) for _ in range(2))
    of_before = [*earlier.to_send(0.0), *earlier.to_send(10.0)]  # the second attempts have had no answer, either
    assert len(list(later.to_send(60.0))) == 8
    assert not any(map(later.acknowledged, of_before))
    assert not later.done
