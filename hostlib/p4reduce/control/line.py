# SPDX-License-Identifier: Apache-2.0
"""One stream to one controller, and the thread that reads it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce.control.forks import end_in_children

log = logging.getLogger(__name__)


class Line:
    """Begins once, and ends once. `say` and `cancel` are for any thread."""

    def __init__(self, address: str, first: pb.ClientMessage) -> None:
        self.address = address
        self._outgoing: queue.SimpleQueue[pb.ClientMessage | None] = queue.SimpleQueue()
        self._outgoing.put(first)
        self._call: Any = None
        self._reader: threading.Thread | None = None

    def begin(
        self,
        channel: grpc.Channel,
        token: str | None,
        heard: Callable[[Line, pb.ServerMessage], None],
        ended: Callable[[Line, grpc.RpcError | None], None],
        *,
        patient: bool,
    ) -> None:
        """`heard` and `ended` are called from the line's thread. `patient`: waits until somebody listens there."""
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        requests = iter(self._outgoing.get, None)
        self._call = rpc.JobsStub(channel).Session(requests, metadata=metadata, wait_for_ready=patient)
        self._reader = threading.Thread(
            target=self._read, args=(self._call, heard, ended), name="p4reduce-session", daemon=True
        )
        self._reader.start()

    @property
    def unsent(self) -> int:
        """Messages that gRPC has not taken yet."""
        return self._outgoing.qsize()

    def say(self, message: pb.ClientMessage) -> None:
        self._outgoing.put(message)

    def cancel(self) -> None:
        self._outgoing.put(None)
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def wait(self, timeout: float) -> None:
        """Until its thread has ended, unless that is who asks."""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout)

    def _read(
        self,
        call: Any,
        heard: Callable[[Line, pb.ServerMessage], None],
        ended: Callable[[Line, grpc.RpcError | None], None],
    ) -> None:
        end_in_children(self.address)
        broken: grpc.RpcError | None = None
        try:
            for message in call:
                heard(self, message)
        except grpc.RpcError as error:
            # The error is the call itself, and its traceback refers to it. A call must be gone after `close`: if only
            # the interpreter's exit collects it, it waits for a lock that a daemon thread may have taken to its grave.
            broken = error.with_traceback(None)
        except Exception:
            log.exception("what the controller at %s has said", self.address)
        self._outgoing.put(None)
        self._call = None
        del call
        ended(self, broken)
