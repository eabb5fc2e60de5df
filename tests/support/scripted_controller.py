# SPDX-License-Identifier: Apache-2.0
"""A controller whose messages a test scripts, for tests of the client's sessions."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.client import Session
from p4reduce.errors import JobAborted
from tests.support.waiting import wait_until

DEADLINE = 10.0


@contextlib.contextmanager
def serving(servicer: rpc.JobsServicer | None = None, *pair: Path, port: int = 0) -> Iterator[str]:
    """Run a gRPC server during the block, and yield its address.

    pair: the files of a certificate and its key. Without them, the server does not use TLS.
    """
    server = grpc.server(ThreadPoolExecutor(4))
    if servicer is not None:
        rpc.add_JobsServicer_to_server(servicer, server)
    if pair:
        certificate, key = (file.read_bytes() for file in pair)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


class Answers(rpc.JobsServicer):
    """A controller that answers Status alone."""

    def Status(self, *_: object) -> pb.StatusReply:
        return pb.StatusReply(jobs_started=7)


class Refuses(rpc.JobsServicer):
    """A controller that answers every call with one error."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self._error = code, text

    def Status(self, _: object, context: Any) -> Any:
        context.abort(*self._error)

    Session = Status


class Script(rpc.JobsServicer):
    """A servicer of one session.

    received: the messages from the client.
    send: the messages that a test sends to the client; None ends the stream.
    """

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
    """A controller at `address`, whose next session `script` serves."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> None:
        self.script = Script()
        self.after = contextlib.ExitStack()
        """Callbacks that run after the test, before the controller stops."""
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

    def send(self, **message: Any) -> None:
        self.script.send.put(pb.ServerMessage(**message))

    def again(self) -> ScriptedController:
        """Return another controller at the same address, as after a restart."""
        later = ScriptedController(port=self.port)
        self.after.callback(later.stop)
        return later

    def stop(self) -> None:
        self.script.send.put(None)
        self._server.stop(None).wait(DEADLINE)


class Attempt(threading.Thread):
    """A call in a thread that is expected to raise. `error` waits for it and returns the exception."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._error = error

    def error(self) -> Exception | None:
        self.join(DEADLINE)
        assert not self.is_alive()
        return self._error


class Clock:
    """A substitute for the module `time`: time passes only by `sleep`, or when a test sets `now`.

    reads: how often the time was asked for.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.reads = 0

    def monotonic(self) -> float:
        self.reads += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Heard(list[JobAborted]):
    """The errors that a session has reported about the end of its job."""

    def wait(self) -> JobAborted:
        wait_until(lambda: self, "the end of the job to be heard of")
        return self[0]


def joined(
    controller: ScriptedController, *others: str, rejoin_time: float = 10.0, key: str = "", **options: Any
) -> Any:
    """Return a session that has joined a job, which is not ready yet. Its attribute `heard` collects errors.

    others: the addresses of more controllers.
    """
    heard = Heard()
    session: Any = Session(",".join([controller.address, *others]), on_abort=heard.append, **options)
    session.heard = heard
    controller.after.callback(session.close)
    controller.script.assign(rejoin_time, key)
    session.join("job", 1, 2)
    assert controller.script.next().WhichOneof("message") == "join"
    return session


def ready(controller: ScriptedController, *others: str, **options: Any) -> Any:
    session = joined(controller, *others, **options)
    controller.script.ready()
    session.wait_ready(lambda: None)
    return session


def abort(rank: int | None = None) -> pb.ServerMessage:
    message = pb.Abort(reason=pb.WORKER_LOST, message="job 'job': rank 0 was lost", rank=rank)
    return pb.ServerMessage(abort=message)


def wait_for_no_session_thread() -> None:
    """Wait until all threads of sessions have ended, which happens some time after a session is closed."""
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "p4reduce-session"], "threads to end")
