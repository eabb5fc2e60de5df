# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads: each joins a job by a session, and sends its HELLO to the switch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Assigned, Session, Tls
from p4reduce.protocol.packet import Packet, hello

DEADLINE = 20.0


def hello_packet(assigned: Assigned) -> Packet:
    sender = {"job": assigned.job, "generation": assigned.generation, "worker": assigned.worker}
    return hello(assigned.lanes, assigned.hello_nonce, **sender)


class Rank(threading.Thread):
    """A rank that joins a job and waits until the job is ready.

    The outcome is in `error`, or in `assigned` and `known`.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        world_size: int,
        *,
        send_hello: Callable[[Assigned], None],
        job: str = "job",
        slots: int = 4,
        timeout: float = 10.0,
        token: str | None = None,
        host: str = "",
        queue: float = 0.0,
        tls: Tls | None = None,
    ) -> None:
        """Start the thread.

        send_hello: a function that sends the rank's HELLO. It gets what the rank was assigned.
        host: the host; ranks of one host can share a stream.
        queue: the longest time in the queue, in seconds.
        """
        super().__init__(daemon=True)
        self.counted: list[pb.Counted] = []
        self.session = Session(address, token=token, tls=tls, on_abort=self._on_abort, on_counted=self.counted.append)
        self.assigned: Assigned | None = None
        self.error: Exception | None = None
        self.aborted_at = 0.0
        self.known: pb.Ready | None = None
        self._join = (job, rank, world_size, slots, timeout, host, queue)
        self._send_hello = send_hello
        self.start()

    def _on_abort(self, _: Exception) -> None:
        self.aborted_at = time.monotonic()

    def run(self) -> None:
        job, rank, world_size, slots, timeout, host, queue = self._join
        try:
            assigned = self.session.join(
                job, rank, world_size,
                slots=slots, timeout=timeout, host=host, shares_stream=bool(host) or None, queue=queue,
            )  # fmt: skip
            self.assigned = assigned
            self.known = self.session.wait_ready(lambda: self._send_hello(assigned))
        except Exception as error:
            self.error = error

    def outcome(self) -> Exception | None:
        self.join(DEADLINE)
        assert not self.is_alive(), f"rank {self._join[1]} still waits"
        return self.error


def ready(ranks: list[Rank]) -> list[Assigned]:
    """Wait until all ranks are ready, and return what they were assigned."""
    for rank in ranks:
        error = rank.outcome()
        if error is not None:
            raise error
    return [rank.assigned for rank in ranks if rank.assigned is not None]
