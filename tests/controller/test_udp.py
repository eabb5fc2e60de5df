# SPDX-License-Identifier: Apache-2.0
"""Switch and controller as the commands that users run, with many workers behind one UDP port."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from p4reduce.control.client import Assigned
from p4reduce.protocol.constants import AGGREGATION_PORT, NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce_controller.switches.frames import Endpoint, build, parse
from tests.support.controller.ranks import DEADLINE, Rank, hello_packet, ready
from tests.support.waiting import wait_until

ANYONE = Endpoint("02:00:00:00:00:00", "127.0.0.1", AGGREGATION_PORT)
HEADERS = 14 + 20 + 8
LANES = 4


class Command:
    """`p4reduce <arguments>` as a process; `ready` is its ready line."""

    def __init__(self, *arguments: str) -> None:
        words = [sys.executable, "-m", "p4reduce", *arguments, "--json"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{arguments} ended with {self.process.wait()}"
        self.ready: dict[str, Any] = json.loads(line)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Worker:
    """A UDP socket toward the switch."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))

    def send(self, assigned: Assigned, packet: Packet) -> None:
        payload = build(packet, ANYONE, ANYONE)[HEADERS:]
        self.socket.sendto(payload, (assigned.aggregators[0].ip, assigned.aggregators[0].udp_port))

    def hello(self, assigned: Assigned) -> None:
        self.send(assigned, hello_packet(assigned))

    def received(self, op: Op) -> Packet:
        end = time.monotonic() + DEADLINE
        while select.select([self.socket], [], [], max(0.0, end - time.monotonic()))[0]:
            payload = self.socket.recv(65536)
            header = bytearray(build(Packet(0), ANYONE, ANYONE)[:HEADERS])
            header[38:40] = (8 + len(payload)).to_bytes(2, "big")
            parsed = parse(bytes(header) + payload, Codec(LANES))
            if parsed and parsed[1].op == op:
                return parsed[1]
        raise AssertionError(f"no {op.name} came")


class Stack:
    """A switch, a controller on it, and workers."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self.workers: list[Worker] = []
        self.ranks: list[Rank] = []
        self.switch = self.start_switch("127.0.0.1:0", "127.0.0.1:0")
        udp = self.switch.ready["ports"]["1"].removeprefix("udp:")
        arguments = ("--switch", self.switch.ready["grpc"], "--listen", "127.0.0.1:0", "--address", udp)
        self.controller = self._closing.enter_context(Command("controller", *arguments))
        self.address: str = self.controller.ready["listen"]

    def start_switch(self, grpc: str, udp: str) -> Command:
        return self._closing.enter_context(
            Command("switch", "--target", "sim", "--port", f"1=udp:{udp}", "--grpc", grpc)
        )

    def job(self, world_size: int, name: str = "job") -> list[Assigned]:
        """Ranks that are ready, each with the worker of its index."""
        self.workers = [Worker() for _ in range(world_size)]
        for worker in self.workers:
            self._closing.callback(worker.socket.close)
        self.ranks = [
            Rank(self.address, rank, world_size, job=name, send_hello=self.workers[rank].hello, timeout=30.0)
            for rank in range(world_size)
        ]
        for rank in self.ranks:
            self._closing.callback(rank.session.close)
        return ready(self.ranks)

    def round(self, assigned: list[Assigned]) -> None:
        for one in assigned:
            keys = (100 - one.worker,) + (NO_KEY,) * (LANES - 1)
            packet = Packet(Op.DATA, one.job, one.generation, one.worker, seq=one.first_seq, keys=keys)
            self.workers[one.worker].send(one, packet)
        for worker in self.workers:
            assert worker.received(Op.RESULT).keys[0] == 101 - len(assigned)

    def ask(self, *arguments: str) -> str:
        words = [sys.executable, "-m", "p4reduce", *arguments, "--controller", self.address]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout

    def close(self) -> None:
        self._closing.close()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    pytest.importorskip("p4reduce_targets.sim")
    stack = Stack()
    yield stack
    stack.close()


def test_workers_behind_one_port_are_told_apart(stack: Stack) -> None:
    assigned = stack.job(3)
    stack.round(assigned)
    status = json.loads(stack.ask("status", "--json"))
    members = status["jobs"][0]["members"]
    places = [place for member in members for place in member["places"]]
    assert [place["udp_port"] for place in places] == [worker.socket.getsockname()[1] for worker in stack.workers]
    assert {(place["port"], place["ip"], place["mac"]) for place in places} == {(1, "127.0.0.1", "02:00:7f:00:00:01")}
    stack.ranks[1].session.close()
    for worker in (0, 2):
        abort = stack.workers[worker].received(Op.ABORT)
        assert (abort.job, abort.worker) == (assigned[0].job, 1)
        assert abort.seq << 32 | abort.fingerprint == assigned[worker].abort_secret != 0
    wait_until(lambda: all(stack.ranks[rank].aborted_at for rank in (0, 2)), "the abort")


def test_losses_are_counted_by_port(stack: Stack) -> None:
    stack.ask("loss", "--port", "1", "--direction", "out", "--rate", "1")
    assigned = stack.job(1, "lossy")
    keys = (5,) + (NO_KEY,) * (LANES - 1)
    stack.workers[0].send(
        assigned[0],
        Packet(Op.DATA, assigned[0].job, assigned[0].generation, 0, seq=assigned[0].first_seq, keys=keys),
    )

    def lost() -> int:
        [switch] = json.loads(stack.ask("status", "--json"))["switches"]
        return sum(loss["lost"] for loss in switch["losses"] if (loss["port"], loss["direction"]) == (1, "OUT"))

    wait_until(lost, "the answer to be lost")
    assert "port 1 out: loses 100.00%" in stack.ask("status")
    stack.ask("loss", "--port", "1", "--rate", "0")
    stack.ranks[0].session.leave()


def test_a_switch_that_restarts_costs_its_jobs_but_not_the_controller(stack: Stack) -> None:
    stack.job(2)
    was = stack.switch.ready
    stack.switch.process.kill()
    stack.switch.process.wait()
    stack.switch = stack.start_switch(was["grpc"], was["ports"]["1"].removeprefix("udp:"))
    wait_until(lambda: all(rank.aborted_at for rank in stack.ranks), "the abort")
    for rank in stack.ranks:
        assert rank.session.aborted is not None
        assert rank.session.aborted.reason == "SWITCH_LOST"
    stack.round(stack.job(2))
    status = json.loads(stack.ask("status", "--json"))
    assert (status["switches"][0]["connected"], len(status["jobs"])) == (True, 1)
