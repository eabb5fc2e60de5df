# SPDX-License-Identifier: Apache-2.0
"""The attacks of a hostile tenant, which go on until the process ends; `hostile` names one of ATTACKS.

The process prints a JSON object every second: how many requests were admitted and refused.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.client import Session
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import JoinError

CONTROLLER, TOKEN = os.environ["P4REDUCE_CONTROLLER"], os.environ["P4REDUCE_TOKEN"]
METADATA = (("authorization", f"Bearer {TOKEN}"),)
THREADS = 4
CONNECTIONS = 4000
HELD_STREAMS = 400
GIANT = 3 << 20  # bytes
NICE = 5  # its machine would be another

done = {"let_in": 0, "refused": 0}


def _count(*, well: bool) -> None:
    done["let_in" if well else "refused"] += 1


def _channel(at: int = 0) -> grpc.Channel:
    """Return a channel with a connection of its own."""
    return open_grpc_channel(CONTROLLER, options=[("attack", at)])


def _again_and_again(work: Callable[[rpc.JobsStub], None]) -> None:
    """Repeat `work` without end, on `THREADS` channels at a time."""

    def forever(at: int) -> None:
        with _channel(at) as channel:
            stub = rpc.JobsStub(channel)
            while True:
                try:
                    work(stub)
                    _count(well=True)
                except grpc.RpcError:
                    _count(well=False)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(forever, range(THREADS)))


def joins() -> None:
    """Join jobs whose second rank never comes, and leave each as soon as the first one has joined."""
    number = 0

    def one(_: rpc.JobsStub) -> None:
        nonlocal number
        number += 1
        with Session(CONTROLLER, token=TOKEN) as session:
            try:
                session.join(f"flood {number} {threading.get_ident()}", 0, 2, slots=1)
            except JoinError:
                _count(well=False)

    _again_and_again(one)


def statuses() -> None:
    def one(stub: rpc.JobsStub) -> None:
        stub.Status(pb.StatusRequest(), timeout=10, metadata=METADATA)

    _again_and_again(one)


def heartbeats() -> None:
    """Send everything that a rank may send in a job, as fast as its streams accept it."""

    def one(stub: rpc.JobsStub) -> None:
        job = f"talk {threading.get_ident()}"

        def talk() -> Iterator[pb.ClientMessage]:
            yield pb.ClientMessage(join=pb.Join(job=job, world_size=2, slots=1))
            while True:
                yield pb.ClientMessage(report=pb.Report(operations=1, awaited=range(8)))
                yield pb.ClientMessage(unanswered=pb.Unanswered(half=1))
                yield pb.ClientMessage(rounds=pb.Rounds(number=1, rounds=range(4096)))
                done["let_in"] += 3

        for _ in stub.Session(talk(), metadata=METADATA):
            pass

    _again_and_again(one)


def slots() -> None:
    """Hold all slots that the tenant may have, by jobs that never become complete."""
    held: list[Session] = []
    number = 0
    while True:
        session = Session(CONTROLLER, token=TOKEN)
        number += 1
        try:
            session.join(f"held {number}", 0, 2, slots=16, timeout=3600)
            held.append(session)
            _count(well=True)
        except JoinError:
            session.close()
            _count(well=False)


def connections() -> None:
    """Open TCP connections on which nothing is ever sent, or only the end of the first line."""
    host, _, port = CONTROLLER.rpartition(":")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: list[socket.socket] = []
    while True:
        try:
            one = socket.create_connection((host, int(port)), timeout=5)
            if len(held) % 2:
                one.sendall(b"PRI * HTTP/2.0\r\n")
            held.append(one)
            _count(well=True)
        except OSError:
            _count(well=False)
        if len(held) >= CONNECTIONS:
            held.pop(0).close()


def streams() -> None:
    """Open streams on which no Join ever comes."""

    def silent() -> Iterator[pb.ClientMessage]:
        threading.Event().wait()
        yield pb.ClientMessage()

    with _channel() as channel:
        calls: list[Any] = []
        while True:
            calls.append(rpc.JobsStub(channel).Session(silent(), metadata=METADATA))
            _count(well=True)
            if len(calls) >= HELD_STREAMS:
                calls.pop(0).cancel()
            time.sleep(0.001)


def giants() -> None:
    """Send requests and metadata that are far larger than the controller accepts."""

    def one(stub: rpc.JobsStub) -> None:
        name = "x" * GIANT
        stub.AbortJob(pb.AbortJobRequest(job=name), timeout=10, metadata=METADATA)

    _again_and_again(one)


ATTACKS = {one.__name__: one for one in (joins, statuses, heartbeats, slots, connections, streams, giants)}


def main() -> None:
    os.nice(NICE)
    threading.Thread(target=ATTACKS[sys.argv[1]], daemon=True).start()
    while True:
        print(json.dumps(done), flush=True)
        time.sleep(1.0)


if __name__ == "__main__":
    main()
