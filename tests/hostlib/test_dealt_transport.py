# SPDX-License-Identifier: Apache-2.0
"""Several aggregators as one transport."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator, Sequence

import pytest
from waiting import receive

from p4reduce.protocol import Membership, Worker
from p4reduce.protocol.constants import Op
from p4reduce.transport import DealtTransport, Switch, Transport, TransportError, open_transports
from p4reduce.transport.udp import UdpTransport


@pytest.fixture
def switches() -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as undo:
        sockets = [undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(3)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
            sock.settimeout(5)
        yield sockets


def places(sockets: Sequence[socket.socket]) -> list[Switch]:
    return [Switch(*sock.getsockname()) for sock in sockets]


@pytest.fixture
def transport(switches: list[socket.socket]) -> Iterator[Transport]:
    transport = open_transports("udp", places(switches))
    yield transport
    transport.close()


def packet(half: int, op: Op = Op.DATA) -> bytes:
    return struct.pack("!BBBBHHHII", 0x10 | op, 1, 1, 2, 3, 4, half, 5, 6) + b"the rest"


def test_packets_go_to_the_aggregator_of_their_slot_and_come_back(
    switches: list[socket.socket], transport: Transport
) -> None:
    halves = [2 * slot + half for slot in range(10) for half in (0, 1)]
    assert transport.send([packet(half) for half in halves]) == len(halves)
    for index, switch in enumerate(switches):
        for half in halves:
            if half // 2 % 3 == index:
                payload, sender = switch.recvfrom(2048)
                assert payload == packet(2 * (half // 2 // 3) + half % 2)
                switch.sendto(payload, sender)
    assert sorted(receive(transport, len(halves))) == sorted(packet(half) for half in halves)


def test_a_hello_goes_to_every_aggregator(switches: list[socket.socket], transport: Transport) -> None:
    member = Membership(
        job=1, generation=1, rank=0, world_size=1, slots=4, lanes=4, block_size=64, first_seq=0
    )  # fmt: skip
    hello = Worker(member).hello(77)
    assert transport.send([hello]) == 1
    assert [switch.recv(2048) for switch in switches] == [hello] * 3


def test_a_slot_that_no_job_can_have_is_dropped(switches: list[socket.socket], transport: Transport) -> None:
    transport.send([packet(0, Op.HELLO)])
    sender = switches[2].recvfrom(2048)[1]
    for half in (2 * (32768 // 3), 0xFFFF, 0):
        switches[2].sendto(packet(half), sender)
    assert receive(transport, 1) == [packet(4)]


def test_only_the_aggregators_are_heard(switches: list[socket.socket], transport: Transport) -> None:
    transport.send([packet(0, Op.HELLO)])
    sender = switches[0].recvfrom(2048)[1]
    switches[1].sendto(packet(0), sender)  # another of the job's, but not this one
    switches[0].sendto(packet(2), sender)
    assert receive(transport, 1) == [packet(6)]


def test_one_aggregator_needs_no_dealing(switches: list[socket.socket]) -> None:
    transport = open_transports("udp", places(switches[:1]))
    assert type(transport) is UdpTransport
    assert transport.quietest() is None
    transport.close()


def test_the_one_that_owes_an_answer_is_named(switches: list[socket.socket]) -> None:
    now = 0.0
    parts: list[Transport] = [UdpTransport(place) for place in places(switches)]
    transport = DealtTransport(parts, places(switches), clock=lambda: now)
    transport.send([packet(slot << 1) for slot in range(3)])
    assert transport.quietest() == (places(switches)[0], float("-inf"))
    for index in (0, 1):
        now += 1
        payload, sender = switches[index].recvfrom(2048)
        switches[index].sendto(payload, sender)
        receive(transport, 1)
    assert transport.quietest() == (places(switches)[2], float("-inf"))
    assert transport.local_address == parts[2].local_address
    payload, sender = switches[2].recvfrom(2048)
    switches[2].sendto(payload, sender)
    receive(transport, 1)
    assert transport.quietest()[1] == 2.0  # nobody owes anything
    transport.send([packet(0), packet(4)])
    now += 5
    assert transport.quietest() == (places(switches)[0], 1.0)
    transport.close()


def test_one_that_is_gone_is_trouble(switches: list[socket.socket], transport: Transport) -> None:
    switches[1].close()
    transport.send([packet(2)])
    select.select([transport], [], [], 5)
    assert transport.receive() == []
    assert isinstance(transport.trouble, ConnectionRefusedError)


class FullTransport(UdpTransport):
    """A transport whose buffer is full when a test says so."""

    full = False

    def send(self, payloads: Sequence[bytes]) -> int:
        return 0 if self.full else super().send(payloads)


def test_packets_wait_for_room_in_order(switches: list[socket.socket]) -> None:
    parts = [FullTransport(place) for place in places(switches)]
    transport = DealtTransport(parts, places(switches))
    parts[1].full = True
    payloads = [packet(slot << 1) for slot in range(4)]
    assert transport.send(payloads) == 1
    assert select.select([transport], [], [], 5)[0], "readable when there is room"
    parts[1].full = False
    assert transport.receive() == []
    assert transport.send(payloads[1:]) == 3
    assert [switch.recv(2048) for switch in switches] == [packet(0)] * 3
    assert switches[0].recv(2048) == packet(2)
    assert not select.select([transport], [], [], 0)[0], "and only then"
    transport.close()


def test_one_that_cannot_be_reached_closes_the_others(switches: list[socket.socket]) -> None:
    with pytest.raises(TransportError, match=r"255\.255\.255\.255:1"):
        open_transports("udp", [*places(switches), Switch("255.255.255.255", 1)])


def test_those_that_are_not_the_ranks_own_are_given_up(switches: list[socket.socket], transport: Transport) -> None:
    assert isinstance(transport, DealtTransport)
    parts = transport.parts
    two = transport.keep([0, 2])
    assert two.send([packet(0), packet(2)]) == 2
    assert [switches[index].recv(100) for index in (0, 2)] == [packet(0)] * 2  # slot 1 is the second one's slot 0
    with pytest.raises((OSError, ValueError)):
        select.select([parts[1]], [], [], 0)
    assert isinstance(two, DealtTransport)
    assert two.keep([0]) is parts[0]
    parts[0].close()


def test_close_may_be_repeated(transport: Transport) -> None:
    transport.close()
    transport.close()
