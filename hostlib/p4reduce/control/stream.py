# SPDX-License-Identifier: Apache-2.0
"""One gRPC stream to one controller, and the thread that reads it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.forks import end_in_children

log = logging.getLogger(__name__)

OnMessage: TypeAlias = "Callable[[ControllerStream, pb.ServerMessage], None]"
OnEnd: TypeAlias = "Callable[[ControllerStream, grpc.RpcError | None], None]"


class ControllerStream:
    """A stream that is opened once and ends once. Any thread may call `send` and `cancel`."""

    def __init__(self, address: str, first: pb.ClientMessage) -> None:
        """Prepare a stream. `address`: the controller's. `first`: the message that opens it, a Join or a Rejoin."""
        self.address = address
        self._outgoing: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._outgoing.put(first)
        self._call: Any = None
        self._reader: threading.Thread | None = None

    def open(
        self, channel: grpc.Channel, token: str | None, on_message: OnMessage, on_end: OnEnd, *, wait_for_listener: bool
    ) -> None:
        """Start the call, and the thread that calls `on_message` and `on_end`.

        `wait_for_listener`: if nothing listens at the address, the call waits until something does.
        """
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        requests = iter(self._outgoing.get, None)
        self._call = rpc.JobsStub(channel).Session(requests, metadata=metadata, wait_for_ready=wait_for_listener)
        self._reader = threading.Thread(
            target=self._read, args=(self._call, on_message, on_end), name="p4reduce-session", daemon=True
        )
        self._reader.start()

    @property
    def unsent(self) -> int:
        """Messages that gRPC has not taken yet."""
        return self._outgoing.qsize()

    def send(self, message: pb.ClientMessage) -> None:
        """Queue a message and return at once."""
        self._outgoing.put(message)

    def cancel(self) -> None:
        """End the stream. Its thread then calls `on_end`."""
        self._outgoing.put(None)
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def wait(self, timeout: float) -> None:
        """Wait until the stream's thread has ended, at most `timeout` seconds. That thread itself does not wait."""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout)

    def _read(self, call: Any, on_message: OnMessage, on_end: OnEnd) -> None:
        end_in_children(self.address)
        broken: grpc.RpcError | None = None
        try:
            for message in call:
                on_message(self, message)
        except grpc.RpcError as error:
            # The error is the call itself, and its traceback refers to it. The call must be gone after `close`: if it
            # is collected only at the interpreter's exit, it waits for a lock that a stopped daemon thread may hold.
            broken = error.with_traceback(None)
        except Exception:
            log.exception("a message of the controller at %s cannot be handled", self.address)
        self._outgoing.put(None)
        self._call = None
        del call
        on_end(self, broken)
