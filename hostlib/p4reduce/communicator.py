# SPDX-License-Identifier: Apache-2.0
"""A rank's membership in a job: what users call."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from p4reduce import settings
from p4reduce.control.client import DEFAULT_CONTROLLER, Tls
from p4reduce.errors import P4ReduceError, UnsupportedDtype
from p4reduce.handle import Handle
from p4reduce.joining import take_seat
from p4reduce.protocol import Operation
from p4reduce.tensors import Reducible, open_tensor

ReduceOp: TypeAlias = Literal["sum", "average"]
REDUCE_OPS: tuple[str, ...] = get_args(ReduceOp)

T = TypeVar("T")


@dataclass(frozen=True)
class Stats:
    """What a communicator has done so far. Bytes are those of UDP payloads."""

    seconds: float
    """Time with at least one operation under way."""
    operations: int
    """Collectives that ended well."""
    rounds: int
    retransmissions: int
    packets_sent: int
    packets_received: int
    bytes_sent: int
    bytes_received: int
    blocks_sent: int
    blocks_skipped: int
    """Blocks of this rank that held only zeros, and so were not sent."""
    blocks_received: int


# Once: dataclasses.fields() leaks 100 bytes a call on CPython 3.11.7.
_OF_WORKER = tuple(field.name for field in fields(Stats) if field.name != "seconds")


class Communicator:
    """Reduces tensors over the ranks of one job, on the switch.

    Making one joins the job, and returns when all ranks have. Methods may be called from any thread; all ranks must
    call collectives in the same order. After a failure every call raises it again: all ranks need a new communicator.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        job: str = "default",
        rank: int | None = None,
        world_size: int | None = None,
        slots: int = 0,
        transport: str | None = None,
        interface: str | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = 30.0,
        switch: str | None = None,
    ) -> None:
        """Joins `job` as `rank` of `world_size`.

        controller: "host:port"; by default P4REDUCE_CONTROLLER, else 127.0.0.1:7700.
        job: ranks that give the same name reduce together.
        rank, world_size: by default RANK and WORLD_SIZE, as torchrun sets them. At most 32 ranks at one switch, and
            255 in all.
        slots: packets under way at once; 0 for the controller's default. What it gives may be fewer.
        transport: "udp", "raw" or "scapy"; by default P4REDUCE_TRANSPORT, else "udp".
        interface: network interface toward the switch; by default the routing table decides.
        token: what the controller asks for; by default P4REDUCE_TOKEN.
        tls: how to trust the controller; by default the authorities in the PEM file that P4REDUCE_TLS_CA names, and
            where that is not set, the connection is not encrypted.
        timeout: seconds, for joining and for each collective.
        switch: the controller's name for the one that this rank is at; by default P4REDUCE_SWITCH, else the first that
            hears it.
        Raises ValueError for a wrong argument, JoinError when the job cannot be joined, TransportError when the switch
        cannot be reached with this transport.
        """
        self._rank, self._world_size = settings.rank_of_world(rank, world_size)
        self._controller = settings.text("controller", controller, "P4REDUCE_CONTROLLER", DEFAULT_CONTROLLER)
        self._job = settings.name("job", job)
        self._transport_kind = settings.transport(transport)
        self._timeout = settings.seconds("timeout", timeout)
        self._seat = take_seat(
            self._controller,
            job=self._job,
            rank=self._rank,
            world_size=self._world_size,
            slots=settings.integer("slots", slots, 0, settings.MAX_SLOTS),
            transport=self._transport_kind,
            interface=interface,
            token=settings.token(token),
            tls=settings.tls(tls),
            timeout=self._timeout,
            at=settings.switch(switch),
        )
        self._engine = self._seat.engine
        self._under_way: set[Handle[Any]] = set()
        self._barrier_lock = threading.Lock()
        # Also at the interpreter's exit, so that the other ranks of a job that ended well see no rank vanish.
        self._finalizer = weakref.finalize(self, self._seat.leave)

    @property
    def rank(self) -> int:
        """This rank's index within the job."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self._world_size

    @property
    def block_size(self) -> int:
        """Elements a block: blocks that hold only zeros are not sent, and each is scaled by its largest magnitude."""
        return self._seat.membership.block_size

    def allreduce(self, tensor: T, op: ReduceOp = "sum", *, timeout: float | None = None) -> T:
        """Replaces `tensor` by its sum or average over all ranks, bit for bit the same on each, and returns it.

        tensor: NumPy array or CPU torch tensor of float32, float16, bfloat16 or int32 (no average), of any shape and
        strides, with the same shape and dtype on every rank. Float sums are exact to 31 - log2(world_size) bits of the
        largest magnitude in each block; int32 wraps around.
        timeout: seconds; by default the communicator's.
        Raises CollectiveTimeout, MismatchError if ranks called different things, JobAborted if one went.
        """
        return self.allreduce_async(tensor, op, timeout=timeout).result()

    def allreduce_async(self, tensor: T, op: ReduceOp = "sum", *, timeout: float | None = None) -> Handle[T]:
        """Starts what `allreduce` does and returns at once. The tensor must not be touched until the handle is done.

        timeout: seconds from when no earlier collective is under way any more.
        """
        limit = self._time_limit(timeout)
        if op not in REDUCE_OPS:
            raise ValueError(f"op={op!r}: accepted are {', '.join(REDUCE_OPS)}")
        self._engine.check()
        reducible = open_tensor(tensor)
        if op == "average" and reducible.dtype == "int32":
            raise UnsupportedDtype("op='average' of int32, whose average is no integer: use op='sum' and divide")
        name = f"allreduce ({op}) of {reducible.work.size} {reducible.dtype}"
        handle = Handle(tensor, name, self._engine)
        divisor = self._world_size if op == "average" else 1
        operation = Operation(reducible.work, dtype=reducible.dtype, reduce_op=op, divisor=divisor)

        def end(error: BaseException | None) -> None:
            handle.complete(error or _write_back(reducible, 1 if operation.divided else divisor))
            self._under_way.discard(handle)

        self._under_way.add(handle)
        try:
            self._engine.submit(operation, name=name, timeout=limit, on_end=end)
        except BaseException:
            self._under_way.discard(handle)
            raise
        return handle

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when all ranks have called it. `timeout`: seconds; by default the communicator's."""
        limit = self._time_limit(timeout)
        self._engine.check()
        try:
            with self._barrier_lock:
                self._seat.session.barrier(limit)
        except P4ReduceError as error:
            # A rank that missed one barrier would meet the others in the wrong one.
            self._engine.fail(error)
            raise

    def stats(self) -> Stats:
        """What was done so far."""
        worker = self._engine.stats
        return Stats(seconds=self._engine.seconds, **{name: getattr(worker, name) for name in _OF_WORKER})

    def close(self) -> None:
        """Leaves the job, which ends when all ranks have. Collectives still under way fail. May be called repeatedly.

        As a context manager, the communicator first waits for them; after an exception it ends the job for all ranks.
        """
        self._finalizer()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            # The other ranks would wait in vain for this one's next call.
            if self._finalizer.detach() is not None:
                self._seat.leave(well=False)
            return
        try:
            for handle in list(self._under_way):
                handle.wait()
        finally:
            self.close()

    def __repr__(self) -> str:
        failure = self._engine.failure
        state = "" if failure is None else f", ended: {failure}"
        return (
            f"<Communicator: rank {self._rank} of {self._world_size} in job {self._job!r} at {self._controller}, "
            f"{self._transport_kind}{state}>"
        )

    def _time_limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else settings.seconds("timeout", timeout)


def _write_back(reducible: Reducible, divisor: int) -> Exception | None:
    """Runs in the carrier's thread, which an error in the user's tensor must not end."""
    try:
        reducible.write_back(divisor)
    except Exception as error:
        return error
    return None
