# SPDX-License-Identifier: Apache-2.0
"""The C and the Python engine send every aggregator the same packets."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from p4reduce.engine.engine import Engine
from p4reduce.engine.python_engine import PythonEngine
from p4reduce.errors import CollectiveTimeout, P4ReduceError
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.aggregators import from_aggregator, slots_of
from p4reduce.protocol.constants import Op
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.transport import SharedTransport, StripedTransport, Switch, open_transports
from tests.support.hostlib.engines import MORE, shared
from tests.support.hostlib.operations import end_of
from tests.support.hostlib.udp_switch import Receiver, members
from tests.support.loopbacks import LOOPBACKS, bound
from tests.support.waiting import wait_until

SLOTS = 150  # more than a super-packet takes, at each of two aggregators
ENGINES = ["c", "python"]
SOL_UDP, UDP_GRO = 17, 104
HEADER = 18  # bytes before the keys


Jobs = Sequence[tuple[int, int]]


class Aggregators(Receiver):
    """Aggregators of a job of one rank, each of which returns the rank's packets as results, and keeps them.

    loss: share of packets that are only answered when they come again. `longest`: most packets in one super-packet.
    strangers: job numbers and generations, as four bytes, of which false results come before the right one,
    except for those of the packet.
    """

    def __init__(self, count: int, loss: float = 0.0, ip: str = LOOPBACKS[0]) -> None:
        self.sockets = [bound(ip) for _ in range(count)]
        for sock in self.sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        self.longest = 0
        self._loss, self._random = loss, random.Random(5)
        self.came: list[set[bytes]] = [set() for _ in self.sockets]
        self.deaf: set[int] = set()
        self.strangers: list[bytes] = []
        super().__init__(*self.sockets)

    @property
    def endpoints(self) -> list[Switch]:
        return [Switch(*sock.getsockname()[:2]) for sock in self.sockets]

    def _receive(self, sock: socket.socket) -> None:
        payload, ancillary, _, sender = sock.recvmsg(65536, 64)
        segment = int.from_bytes(ancillary[0][2], sys.byteorder) if ancillary else len(payload)
        self.longest = max(self.longest, -(-len(payload) // segment))
        for at in range(0, len(payload), segment):
            self._take(sock, payload[at : at + segment], sender)

    def _take(self, sock: socket.socket, payload: bytes, sender: tuple[str | int, ...]) -> None:
        index = self.sockets.index(sock)
        lost = payload not in self.came[index] and self._random.random() < self._loss
        self.came[index].add(payload)
        if not lost and index not in self.deaf:
            for job in set(self.strangers) - {payload[4:8]}:
                false = (
                    bytes([0x10 | Op.RESULT]) + payload[1:4] + job + payload[8:HEADER] + bytes(len(payload) - HEADER)
                )
                sock.sendto(false, sender)
            sock.sendto(bytes([0x10 | Op.RESULT]) + payload[1:], sender)


def start(kind: str, aggregators: Aggregators, membership: Membership, jobs: Jobs = (), spares: int = 0) -> Engine:
    transport = open_transports("udp", aggregators.endpoints, jobs=jobs)
    if spares:
        assert isinstance(transport, StripedTransport)
        transport = transport.keep(range(len(aggregators.endpoints)), spares)
    if kind == "c":
        return NativeEngine(transport, membership, switch="nowhere")
    return PythonEngine(transport, Worker(membership), switch="nowhere")


def tensor() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    generator = np.random.default_rng(5)
    values = generator.standard_normal((4000, 64)).astype(np.float32)
    values[generator.random(4000) < 0.3] = 0
    return values.reshape(-1)


def packets(
    kind: str,
    count: int,
    loss: float = 0.0,
    slots: int = SLOTS,
    jobs: Jobs = (),
    strangers: Sequence[bytes] = (),
    ip: str = LOOPBACKS[0],
) -> list[set[bytes]]:
    """Run one operation, check its result, and return the packets that each of `count` aggregators got.

    slots: the number of slots that the operation uses. jobs: the job's number and generation at each aggregator.
    """
    with contextlib.closing(Aggregators(count, loss, ip)) as aggregators:
        aggregators.strangers.extend(strangers)
        engine = start(kind, aggregators, members(1, slots=SLOTS)[0], jobs)
        if slots < SLOTS:
            held = threading.Event()
            engine.hold(0, lambda *_: held.set())
            assert held.wait(10)
            engine.go_on(slots, 2**32 - 4)
        values = tensor()
        expected = reference_allreduce([values])
        try:
            assert end_of(engine, Operation(values), timeout=30) is None
        finally:
            engine.close(P4ReduceError("closed by the test"))
        np.testing.assert_array_equal(values.view(np.int32), expected.view(np.int32))
        return aggregators.came


@pytest.mark.parametrize("count", [2, 3, 32])
def test_same_packets_to_each_aggregator(count: int) -> None:
    one = packets("c", count)
    assert one == packets("python", count)
    assert all(one)
    back = {
        payload[:8]
        + from_aggregator(int.from_bytes(payload[8:10], "big"), index, count).to_bytes(2, "big")
        + payload[10:]
        for index, came in enumerate(one)
        for payload in came
    }
    assert [back] == packets("c", 1)  # and together, what one would be sent


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_aggregators_with_numbers_of_their_own(kind: str, loss: float) -> None:
    """A result under the number of another aggregator, or of an earlier generation, is ignored."""
    jobs = [(1, 3), (1, 4), (7, 0xFFFF), (0x8001, 3)]
    packed = [number.to_bytes(2, "big") + generation.to_bytes(2, "big") for number, generation in jobs]
    came = packets(kind, 4, loss, jobs=jobs, strangers=[*packed, bytes(4), b"\0\7\0\0"])
    assert [{payload[4:8] for payload in there} for there in came] == [{job} for job in packed]
    back = [{payload[:4] + packed[0] + payload[8:] for payload in there} for there in came]
    assert back == packets(kind, 4)


def test_same_packets_with_fewer_slots() -> None:
    few = packets("c", 3, slots=7)
    assert few == packets("python", 3, slots=7)
    slots = [{int.from_bytes(payload[8:10], "big") >> 1 for payload in came} for came in few]
    assert slots == [{0, 1, 2}, {0, 1}, {0, 1}]  # slot s lives at aggregator s mod 3


@pytest.mark.parametrize("kind", ENGINES)
def test_what_is_sent_again_is_the_same(kind: str) -> None:
    assert packets(kind, 3, loss=0.05) == packets(kind, 3)


@pytest.mark.parametrize("kind", ENGINES)
def test_same_packets_over_ipv6(kind: str) -> None:
    assert packets(kind, 3, ip=LOOPBACKS[1]) == packets(kind, 3)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("loopback", LOOPBACKS)
def test_an_aggregator_that_is_silent_is_named(kind: str, loopback: str) -> None:
    with contextlib.closing(Aggregators(3, ip=loopback)) as aggregators:
        aggregators.deaf = {1}
        engine = start(kind, aggregators, members(1, slots=SLOTS)[0])
        error = end_of(engine, Operation(tensor()), timeout=1)
        engine.close(P4ReduceError("closed by the test"))
        assert isinstance(error, CollectiveTimeout)
        assert re.search(
            rf"the switch at {re.escape(str(aggregators.endpoints[1]))} has not answered for \d\.\d s", str(error)
        )


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("offload", ["", "none"])
@pytest.mark.parametrize("ip", LOOPBACKS)
def test_super_packets_are_of_one_aggregator(
    monkeypatch: pytest.MonkeyPatch, offload: str, count: int, ip: str
) -> None:
    monkeypatch.setenv("P4REDUCE_OFFLOAD", offload)
    with contextlib.closing(Aggregators(count, ip=ip)) as aggregators:
        engine = start("c", aggregators, members(1, slots=SLOTS)[0])
        assert isinstance(engine, NativeEngine)
        ends = [end_of(engine, Operation(tensor()), timeout=30) for _ in range(3)]  # with the first, the window opens
        link, stats, longest = engine.link(), engine.stats, aggregators.longest
        engine.close(P4ReduceError("closed by the test"))
        assert ends == [None] * 3
        assert link == ("UDP" if offload else "UDP, GSO, GRO") + (", to 2 aggregators" if count == 2 else "")
        assert stats.foreign == 0
        assert longest == 1 if offload else longest > 1


def test_sockets_must_be_connected() -> None:
    with contextlib.closing(Aggregators(2)) as aggregators:
        transport = open_transports("udp", aggregators.endpoints)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            os.dup2(other.fileno(), transport.parts[1].fileno())  # type: ignore[attr-defined]
            with pytest.raises(ValueError, match=r"socket \d+ is not connected to an IPv4 or IPv6 address"):
                NativeEngine(transport, members(1)[0], switch="nowhere")
        transport.close()


@pytest.mark.parametrize("kind", ENGINES)
def test_slots_of_a_lost_aggregator_go_on_at_another(kind: str) -> None:
    """The aggregator that carries them is lost as well, so in the end one switch gets all packets of three numbers."""
    first, second, third = 9 << 16 | 7, 9 << 16 | 8, 2 << 16 | 8
    with contextlib.closing(Aggregators(3)) as aggregators:
        engine = start(kind, aggregators, members(1, slots=SLOTS)[0])
        assert engine.suspend(3) is None
        try:
            for losses in ([(0, 1, first)], [(1, 2, second), (0, 2, third)]):
                dead = losses[0][0]
                aggregators.deaf.add(dead)
                values = tensor()
                expected = reference_allreduce([values])
                with ThreadPoolExecutor(1) as pool:
                    end = pool.submit(end_of, engine, Operation(values), timeout=30)
                    wait_until(partial(aggregators.came.__getitem__, dead), "packets to the aggregator that is lost")
                    for lost, via, job in losses:
                        rounds = engine.suspend(lost)
                        assert rounds is not None
                        assert len(rounds) == SLOTS // 3
                        engine.move(lost, via, [job], rounds)
                    assert end.result() is None
                np.testing.assert_array_equal(values.view(np.int32), expected.view(np.int32))
                aggregators.came = [set() for _ in aggregators.came]
            values = tensor()
            assert end_of(engine, Operation(values), timeout=30) is None
            assert not aggregators.came[0] | aggregators.came[1]
            jobs = {payload[4:8] for payload in aggregators.came[2]}
            assert jobs == {job.to_bytes(4, "big") for job in (1 << 16 | 3, second, third)}
            engine.move(0, 2, [first], [5] * (SLOTS // 3))
            with pytest.raises(P4ReduceError, match="in a way that cannot be: the round of slot 0 is 5: accepted are"):
                engine.check()
        finally:
            engine.close(P4ReduceError("closed by the test"))
        assert engine.suspend(0) is None
        engine.move(0, 1, [first], [])


@pytest.mark.parametrize("threads", [2, 3])
def test_slots_of_all_threads_go_on_at_another_aggregator(threads: int) -> None:
    """Rounds and job numbers come thread after thread. 151 slots are not a multiple of anything here."""
    membership = shared(members(1, slots=SLOTS + 1)[0], threads)
    with contextlib.closing(Aggregators(3)) as aggregators:
        parts = [open_transports("udp", aggregators.endpoints) for _ in range(threads)]
        engine = NativeEngine(SharedTransport(parts), membership, switch="nowhere")
        assert engine.suspend(3) is None
        own = [membership.job + MORE * thread for thread in range(threads)]
        try:
            values = tensor()
            expected = reference_allreduce([values])
            aggregators.deaf.add(1)
            with ThreadPoolExecutor(1) as pool:
                end = pool.submit(end_of, engine, Operation(values), timeout=30)
                wait_until(lambda: jobs_of(aggregators.came[1]) == {*own}, "packets of all threads to what is lost")
                rounds = engine.suspend(1)
                counts = [len(range(1, slots_of(thread, SLOTS + 1, threads), 3)) for thread in range(threads)]
                assert rounds is not None
                assert len(rounds) == sum(counts)
                moved = [number + 1 for number in own]
                engine.move(1, 2, [number << 16 | 9 for number in moved], rounds)
                assert end.result() is None
            np.testing.assert_array_equal(values.view(np.int32), expected.view(np.int32))
            assert jobs_of(aggregators.came[2]) == {*own, *moved}
            for number, count in zip(moved, counts, strict=True):
                assert slots_in(aggregators.came[2], number) == set(range(count))
        finally:
            engine.close(P4ReduceError("closed by the test"))
        assert engine.suspend(0) is None


@pytest.mark.parametrize("wrong", ["jobs", "too many", "too few", "a round"])
def test_threads_whose_slots_cannot_go_on_so(wrong: str) -> None:
    membership = shared(members(1, slots=10)[0], 2)
    with contextlib.closing(Aggregators(2)) as aggregators:
        parts = [open_transports("udp", aggregators.endpoints) for _ in range(2)]
        engine = NativeEngine(SharedTransport(parts), membership, switch="nowhere")
        try:
            rounds = engine.suspend(1)
            assert rounds == [2**32 - 4] * 4
            given = {"too many": [*rounds, 0], "too few": rounds[:-1], "a round": [*rounds[:-1], 7]}.get(wrong, rounds)
            engine.move(1, 0, [5 << 16, 6 << 16][: 1 if wrong == "jobs" else 2], given)
            wait_until(lambda: engine.failure is not None, "the failure")
            why = {
                "jobs": "jobs are 1: accepted are 2, one for each thread",
                "too many": "rounds are 3: accepted are 2, one for each of the slots",
                "too few": "rounds are 1: accepted are 2, one for each of the slots",
                "a round": "the round of slot 3 is 7: accepted are",
            }[wrong]
            assert f"the controller moved slots of the job in a way that cannot be: {why}" in str(engine.failure)
        finally:
            engine.close(P4ReduceError("closed by the test"))


def jobs_of(payloads: set[bytes]) -> set[int]:
    return {int.from_bytes(payload[4:6], "big") for payload in list(payloads)}


def slots_in(payloads: set[bytes], job: int) -> set[int]:
    """Return the slots of a job that have packets."""
    return {int.from_bytes(one[8:10], "big") >> 1 for one in payloads if int.from_bytes(one[4:6], "big") == job}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("count", [1, 2])
def test_slots_go_on_at_a_spare(kind: str, count: int) -> None:
    """The spare gets no packets before, and then all packets that the aggregators would get."""
    jobs = [9 << 16 | 7, 10 << 16 | 8][:count]
    with contextlib.closing(Aggregators(count + 1)) as aggregators:
        engine = start(kind, aggregators, members(1, slots=SLOTS)[0], spares=1)
        try:
            assert engine.suspend(count) is None
            for dead in ([], list(range(count))):
                aggregators.deaf |= {*dead}
                values = tensor()
                expected = reference_allreduce([values])
                with ThreadPoolExecutor(1) as pool:
                    end = pool.submit(end_of, engine, Operation(values), timeout=30)
                    for lost in dead:
                        wait_until(partial(aggregators.came.__getitem__, lost), "packets to the lost aggregator")
                        rounds = engine.suspend(lost)
                        assert rounds is not None
                        assert len(rounds) == SLOTS // count
                        engine.move(lost, count, [jobs[lost]], rounds)
                    assert end.result() is None
                np.testing.assert_array_equal(values.view(np.int32), expected.view(np.int32))
                assert bool(aggregators.came[count]) == bool(dead)
                before, aggregators.came = aggregators.came, [set() for _ in aggregators.came]
            assert {int.from_bytes(payload[4:8], "big") for payload in before[count]} == {*jobs}
        finally:
            engine.close(P4ReduceError("closed by the test"))


@pytest.mark.parametrize("kind", ENGINES)
def test_one_aggregator_has_no_other(kind: str) -> None:
    with contextlib.closing(Aggregators(1)) as aggregators:
        engine = start(kind, aggregators, members(1, slots=SLOTS)[0])
        assert engine.suspend(0) is None
        engine.move(0, 1, [5], [])
        assert engine.failure is None
        engine.close(P4ReduceError("closed by the test"))
