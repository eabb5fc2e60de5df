# SPDX-License-Identifier: Apache-2.0
"""A controller that follows a script, to see what a session makes of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc

DEADLINE = 10.0


class Script(rpc.JobsServicer):
    """`received` has what the client sent. What a test puts into `send` goes to it; None ends the stream."""

    def __init__(self) -> None:
        self.received: queue.Queue[pb.ClientMessage] = queue.Queue()
        self.send: queue.Queue[pb.ServerMessage | None] = queue.Queue()
        self.gone = threading.Event()

    def Session(self, requests: Any, context: Any) -> Iterator[pb.ServerMessage]:  # type: ignore[override]
        def read() -> None:
            try:
                for message in requests:
                    self.received.put(message)
            except grpc.RpcError:
                pass
            self.send.put(None)

        context.add_callback(self.gone.set)
        threading.Thread(target=read, daemon=True).start()
        while (message := self.send.get()) is not None:
            yield message

    def next(self) -> pb.ClientMessage:
        return self.received.get(timeout=DEADLINE)

    def assign(self, rejoin_time: float = 10.0, key: str = "") -> None:
        assigned = pb.Assigned(
            job=3, generation=9, worker=1, slots=4, lanes=4, block_size=64, rejoin_s=rejoin_time, rejoin_key=key
        )
        self.send.put(pb.ServerMessage(assigned=assigned))

    def ready(self) -> None:
        self.send.put(pb.ServerMessage(ready=pb.Ready()))


class ScriptedController:
    """`address` is where it listens; `script` serves the next session."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        self.script = Script()
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        rpc.add_JobsServicer_to_server(self.script, self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        else:
            self.port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.script.send.put(None)
        self._server.stop(None).wait(DEADLINE)


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    yield controller
    controller.stop()
