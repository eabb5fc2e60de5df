# SPDX-License-Identifier: Apache-2.0
"""The packet loop between ports and a data plane."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from p4reduce_targets.ports import UdpPort
from p4reduce_targets.switch import Switch
from tests.support.dataplane.targets import looping
from tests.support.waiting import wait_until

from .p4runtime.fake_device import FakeDataPlane

CPU_PORT = 510
TIMEOUT_S = 10.0

Process = Callable[[int, bytes], list[tuple[int, bytes]]]


class Plane(FakeDataPlane):
    """A data plane that processes frames as the test says."""

    def __init__(self, process: Process) -> None:
        super().__init__(b'{"pipelines": []}', CPU_PORT)
        self._process = process

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self._process(port, frame)


def answer(frame: bytes) -> bytes:
    return frame[:26] + frame[30:34] + frame[26:30] + frame[36:38] + frame[34:36] + frame[38:]


@contextmanager
def running(process: Process | None) -> Iterator[tuple[Switch, list[socket.socket]]]:
    """Yield a switch with ports 1 and 2, and a connected socket for each."""
    ports = [UdpPort(number, "127.0.0.1", 0) for number in (1, 2)]
    peers = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in ports]
    with Switch(FakeDataPlane, ports, CPU_PORT) as switch, peers[0], peers[1]:
        for peer, port in zip(peers, ports, strict=True):
            peer.settimeout(TIMEOUT_S)
            peer.connect(("127.0.0.1", int(port.name.rpartition(":")[2])))
        if process is not None:
            switch.run_program(Plane(process))
        with looping(switch):
            yield switch, peers


def test_frames_of_every_port_are_answered() -> None:
    with running(lambda port, frame: [(port, answer(frame))]) as (_, peers):
        for index in range(100):
            for peer in peers:
                peer.send(bytes([index]))
        for peer in peers:
            assert [peer.recv(10)[0] for _ in range(100)] == list(range(100))


def test_a_frame_can_have_many_copies() -> None:
    with running(lambda _, frame: [(7, frame)] + [(1, answer(frame))] * 3) as (switch, peers):
        peers[0].send(b"x")
        assert [peers[0].recv(10) for _ in range(3)] == [b"x"] * 3
        assert switch.undeliverable == 1


def test_without_a_program_nothing_comes_out() -> None:
    with running(None) as (switch, peers):
        peers[0].send(b"before")
        switch.packet_out(b"frame")
        wait_until(lambda: switch.ports[1].received, "the frame to be received")
        with switch.exclusive():
            switch.run_program(Plane(lambda port, frame: [(port, answer(frame))]))
        peers[0].send(b"after")
        assert peers[0].recv(10) == b"after"


def test_frames_to_and_from_the_controller() -> None:
    came: queue.Queue[bytes] = queue.Queue()

    def process(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return [(1, frame)] if port == CPU_PORT else [(CPU_PORT, frame), (port, answer(frame))]

    with running(process) as (switch, peers):
        switch.on_packet_in = came.put
        peers[0].send(b"hello")
        frame = came.get(timeout=TIMEOUT_S)
        assert frame[42:] == peers[0].recv(10) == b"hello"
        switch.packet_out(answer(frame))
        assert peers[0].recv(10) == b"hello"


def test_a_program_that_fails_loses_its_frame_only(caplog: pytest.LogCaptureFixture) -> None:
    def process(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if frame[42:] == b"bad":
            raise ZeroDivisionError
        return [(port, answer(frame))]

    with running(process) as (_, peers):
        for data in (b"one", b"bad", b"two"):
            peers[0].send(data)
        assert [peers[0].recv(10) for _ in range(2)] == [b"one", b"two"]
    assert "port 1: a frame of 45 bytes is dropped" in caplog.text


def test_a_busy_loop_lets_a_controller_in() -> None:
    done = Event()

    def process(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return [(port, answer(frame))] * 2  # twice what came: its own answers keep it busy for ever

    with running(process) as (switch, peers):

        def echo() -> None:
            peers[0].settimeout(0.2)
            while not done.is_set():
                try:
                    peers[0].send(peers[0].recv(100))
                except TimeoutError:
                    peers[0].send(b"x")

        echoing = Thread(target=echo)
        echoing.start()
        try:
            waits = []
            for _ in range(50):
                before = time.monotonic()
                with switch.exclusive():
                    waits.append(time.monotonic() - before)
            assert sorted(waits)[len(waits) // 2] < 1
            assert max(waits) < TIMEOUT_S
        finally:
            done.set()
            echoing.join(TIMEOUT_S)


def test_stop_before_run() -> None:
    with Switch(FakeDataPlane, [], CPU_PORT) as switch:
        switch.stop()
        switch.run()
