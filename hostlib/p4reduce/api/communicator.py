# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="empty-body"
"""A rank's membership in a job: what users call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from p4reduce import settings
from p4reduce.api.stats import Stats
from p4reduce.collectives import moves, reductions
from p4reduce.collectives.plan import Collective, Group, Layout, Plan, ReduceOp
from p4reduce.control.client import Tls
from p4reduce.engine.handle import Arrival, Handle, synchronous
from p4reduce.join.joining import Attempt, RunningJob, leave_at_end, run_job
from p4reduce.join.options import JoinOptions
from p4reduce.local.host import LocalChoice
from p4reduce.protocol.numbers import values_per_word
from p4reduce.submit.allreduce import Allreduce
from p4reduce.submit.submission import Submission
from p4reduce.tensors.spec import WireChoice, describe

T = TypeVar("T")
P = ParamSpec("P")


class Communicator:
    """A rank's membership in a job: collectives on tensors, which the switch reduces.

    The constructor joins the job and returns when all ranks have joined. Methods may be called from any thread, but all
    ranks must call collectives in the same order. While one thread is in a blocking call, calls of other threads wait.
    After a failure, every call raises the same error again: all ranks need a new communicator. An exception from a
    signal handler that interrupts a blocking collective is such a failure.
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
        timeout: float = settings.TIMEOUT,
        switch: str | None = None,
        wire: WireChoice | None = None,
        link: str | None = None,
        local: LocalChoice | None = None,
        threads: int | None = None,
        on_admitted: Callable[[], None] = lambda: None,
        attempt: Attempt | None = None,
    ) -> None:
        """Join `job` as `rank` of `world_size`.

        controller: "host:port"; by default P4REDUCE_CONTROLLER, else 127.0.0.1:7700.
        job: ranks that give the same name reduce together.
        rank, world_size: by default RANK and WORLD_SIZE, as torchrun sets them. At most 4,096 ranks; at most 32 of them
            send to the same switch: one of each host where `local` is "auto".
        slots: packets in flight; 0 for the controller's default. The controller may assign fewer.
        transport: "udp", "raw" or "scapy"; by default P4REDUCE_TRANSPORT, else "udp".
        interface: network interface toward the switch; by default the routing table decides.
        token: authenticates this rank to the controller; by default P4REDUCE_TOKEN.
        tls: how to trust the controller; by default the authorities in the PEM file that P4REDUCE_TLS_CA names, with
            the certificate to show in P4REDUCE_TLS_CERT and its key in P4REDUCE_TLS_KEY; where none is set, the
            connection is not encrypted.
        timeout: seconds, for joining and for each collective; by default 30 minutes, as in torch.distributed. After
            30 s, a warning names the ranks that are waited for.
        switch: the controller's name for this rank's switch; by default P4REDUCE_SWITCH, else the first switch that
            receives this rank's HELLO.
        wire: the wire type of sums of floats in calls that give none, see `allreduce`; by default P4REDUCE_WIRE, else
            "auto".
        link: the rate of this rank's link, such as "10gbit", by which `allreduce` chooses a layout; by default
            P4REDUCE_LINK, else the rate that the interface toward the switch reports, if any.
        local: "auto": ranks of one host reduce in shared memory, with the same results. If all ranks of the job are on
            one host, they send no packets; else one rank of each host sends for all. "off": this rank sends its own
            packets. By default P4REDUCE_LOCAL, else "auto".
        threads: threads of this rank's engine, the same number on every rank, each with its own socket and share of the
            slots; by default P4REDUCE_THREADS, else 1. More are worth it where packets keep one thread busy and each
            has its own core. Then every rank sends its own packets, unless all are on one host: there one thread works.
            Needs the C backend and the transport "udp".
        on_admitted: called when the job has its slots, before the wait for the other ranks.
        attempt: for this library: lets another thread give up joining.
        Raises ValueError for a wrong argument, JoinError when the job cannot be joined (SlotsExhausted where fewer
        slots are free than it wants), TransportError when the switch cannot be reached with this transport.
        """
        self._options = JoinOptions.checked(
            controller=controller,
            job=job,
            rank=rank,
            world_size=world_size,
            slots=slots,
            transport=transport,
            interface=interface,
            token=token,
            tls=tls,
            timeout=timeout,
            switch=switch,
            local=local,
            threads=threads,
        )
        self._group = Group(self._options.rank, self._options.world_size)
        self._wire = settings.wire(wire)
        rate = settings.link(link)
        self._running = run_job(self._options, on_admitted, attempt)
        self._engine = self._running.engine
        self._submission = Submission(self._engine)
        self._allreduce = Allreduce(
            self._engine, self._submission, self._group, self.block_size, rate or self._running.rate
        )
        # Also at the interpreter's exit, so that the other ranks of a job that ended well see no rank vanish.
        self._finalizer = weakref.finalize(self, leave_at_end, self._running)

    @property
    def rank(self) -> int:
        """This rank's index within the job."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self._group.size

    @property
    def block_size(self) -> int:
        """Words of a block.

        Blocks that hold only zeros are not sent, and each block has its own scale. `values_per_block` says how many
        elements a block has.
        """
        return self._running.membership.block_size

    def values_per_block(self, tensor: Any, wire: WireChoice | None = None) -> int:
        """Return how many elements of `tensor` a block has when it is reduced with this wire type.

        A word carries one, two or four elements. Raises UnsupportedDtype.
        """
        return self.block_size * values_per_word(describe(tensor).wire(self._form(wire)))

    def allreduce(
        self,
        tensor: T,
        op: ReduceOp = "sum",
        *,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        layout: Layout = "auto",
        residual: Any = None,
        timeout: float | None = None,
    ) -> T:
        """Replace `tensor` by its reduction over all ranks, with the same bits on each, and return it.

        tensor: NumPy array or torch tensor, of any shape and strides, with the same shape and dtype on every rank.
        op: "sum" or "average" of float32, float16, bfloat16 or int32 (int32: sum only). Sums of float32 are exact to
            31 - log2(world_size) bits of the largest magnitude in each block, others to the bits of `wire`; int32 wraps
            around. "max" or "min" of any dtype that has an order, exactly, NaN where any rank has NaN. Switches only
            add, so for these every rank receives all ranks' tensors: world_size times the traffic and memory.
        factor: this rank multiplies its tensor by it before the sum (a premultiplied sum); not for int32.
        wire: integer type that sums of floats have in packets, the same on every rank; by default the communicator's.
            The values of a block share a scale. A block has 64 words, each of one "int32", two "int16" or four "int8".
            "int16" keeps 16 - log2(world_size) bits of the block's largest magnitude; "int8" keeps 8 fewer, uses
            stochastic rounding, and accepts up to 127 ranks. "auto": "int16" for float16 and bfloat16, "int32" for
            float32.
        layout: how zeros of a dense tensor are left out, the same on every rank. "blocks": blocks of zeros are not
            sent. "elements": each rank sends the indices of its non-zero elements, then their values are added. "auto"
            chooses the faster one, from facts that all ranks share and not from measurements. It begins with blocks.
            Where a sum has many zeros within its blocks, ranks compare both layouts in the next call of its size and
            dtype.
        residual: for error feedback: receives what this rank's values, times `factor`, lose on the wire. Contiguous
            float32 in the host's memory, with as many elements as `tensor`. Its elements for blocks of zeros, which are
            not sent, stay as they are. For sums and averages of dense floats, on all ranks or on none; a call with a
            residual goes by blocks.
        timeout: seconds; by default the communicator's.
        A torch.sparse_coo tensor of a dtype that can be added becomes the coalesced sum of all ranks' rows; its dense
        form is never made. It takes three operations: the number of rows of each rank; the indices of these rows, 1 to
        2 bytes each; and their values, of which each rank sends its own and receives the union. If every rank has 2 KiB
        or less, the first operation carries all. A CUDA tensor travels through pinned memory of the host.
        Raises CollectiveTimeout, MismatchError if ranks called different collectives, JobAborted if a rank ended.
        """
        form = self._wire if wire is None else settings.wire(wire)
        limit = self._options.timeout if timeout is None else settings.seconds("timeout", timeout)
        call = Collective(op, factor, form, layout, residual, limit)
        self._allreduce.begin(tensor, describe(tensor, sparse=True), call, self.close, blocking=True)
        return tensor

    def allreduce_async(
        self,
        tensor: T,
        op: ReduceOp = "sum",
        *,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        layout: Layout = "auto",
        residual: Any = None,
        timeout: float | None = None,
    ) -> Handle[T]:
        """Start what `allreduce` does and return at once. The tensor must not be touched until the handle is done.

        With a sparse tensor, or layout="elements", it returns when the ranks know each other's rows. "auto" means
        "blocks" here, since ranks may have different results when they call. If one rank calls this method with "auto",
        no other rank may call `allreduce` with "auto": it must give the same `layout`. A CUDA tensor is reduced after
        the work that its current stream has been given; the handle's `wait` makes the stream that is current there wait
        for the result.
        timeout: seconds, counted from when no earlier collective is in flight.
        """
        call = Collective(op, factor, self._form(wire), layout, residual, self._time_limit(timeout))
        handle = self._allreduce.begin(tensor, describe(tensor, sparse=True), call, self.close, blocking=False)
        assert handle is not None
        return handle

    @synchronous
    def reduce(
        self,
        tensor: T,
        dst: int,
        op: ReduceOp = "sum",
        *,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        timeout: float | None = None,
    ) -> T:
        """Replace `tensor` by its reduction on rank `dst` alone, and return it; other ranks' tensors stay as they are.

        Arguments and errors are those of `allreduce`. So is the traffic, since a switch answers all ranks.
        """

    def reduce_async(
        self,
        tensor: T,
        dst: int,
        op: ReduceOp = "sum",
        *,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        timeout: float | None = None,
    ) -> Handle[T]:
        """Start what `reduce` does and return at once. The tensor must not be touched until the handle is done."""
        return self.start(timeout, reductions.reduce, tensor, dst, Collective(op, factor, self._form(wire)))

    @synchronous
    def reduce_scatter(
        self,
        tensor: T,
        op: ReduceOp = "sum",
        *,
        out: T | None = None,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        timeout: float | None = None,
    ) -> T:
        """Return this rank's part of the reduction over all ranks.

        tensor: shape (world_size, *shape); it stays as it is.
        out: where to write the result, of shape `shape`; by default a new array or tensor.
        The other arguments and errors are those of `allreduce`, and so is the traffic: every rank receives all parts.
        """

    def reduce_scatter_async(
        self,
        tensor: T,
        op: ReduceOp = "sum",
        *,
        out: T | None = None,
        factor: float = 1.0,
        wire: WireChoice | None = None,
        timeout: float | None = None,
    ) -> Handle[T]:
        """Start what `reduce_scatter` does and return at once. `out` must not be touched until the handle is done."""
        return self.start(timeout, reductions.reduce_scatter, tensor, out, Collective(op, factor, self._form(wire)))

    @synchronous
    def broadcast(self, tensor: T, src: int, *, timeout: float | None = None) -> T:
        """Replace `tensor` by that of rank `src`, bit for bit, and return it.

        tensor: NumPy array or torch tensor of any dtype, shape and strides, the same on every rank.
        timeout: seconds; by default the communicator's.
        A broadcast is the sum of the tensor's bits and the other ranks' zeros. Rank `src` sends its non-zero blocks;
        the others receive them in a copy, so that a failure leaves their tensors as they were.
        Raises UnsupportedDtype for an array of Python objects, else the errors of `allreduce`.
        """

    def broadcast_async(self, tensor: T, src: int, *, timeout: float | None = None) -> Handle[T]:
        """Start what `broadcast` does and return at once. The tensor must not be touched until the handle is done."""
        return self.start(timeout, moves.broadcast, tensor, src)

    @synchronous
    def all_gather(self, tensor: T, *, out: T | None = None, timeout: float | None = None) -> T:
        """Return the tensors of all ranks, bit for bit: shape (world_size, *tensor.shape).

        tensor: NumPy array or torch tensor of any dtype, shape and strides, the same on every rank; it may be a part of
            `out`.
        out: where to write the result; by default a new array or tensor.
        timeout: seconds.
        It is one sum of tensors that hold zeros outside the rank's own part. A rank sends the non-zero blocks of its
        own tensor and receives those of all ranks.
        Raises UnsupportedDtype for an array of Python objects, else the errors of `allreduce`.
        """

    def all_gather_async(self, tensor: T, *, out: T | None = None, timeout: float | None = None) -> Handle[T]:
        """Start what `all_gather` does and return at once. `out` must not be touched until the handle is done."""
        return self.start(timeout, moves.all_gather, tensor, out)

    @synchronous
    def barrier(self, timeout: float | None = None) -> None:
        """Return when all ranks have called it.

        timeout: seconds; by default the communicator's.
        A barrier is an allreduce of an empty tensor: one packet each way. It does not wait for earlier collectives.
        """

    def barrier_async(self, timeout: float | None = None) -> Handle[None]:
        """Start what `barrier` does and return at once; the handle is done when all ranks have called it."""
        return self.start(timeout, moves.barrier)

    def start(
        self,
        timeout: float | None,
        make_plan: Callable[Concatenate[Group, P], Plan[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[T]:
        """Start the collective that `make_plan`, called with the ranks and `args`, stages. For this library."""
        limit = self._time_limit(timeout)
        self._engine.check()
        return self._submission.submit(make_plan(self._group, *args, **kwargs), limit)

    def execute(self, tensor: Any, call: Collective) -> None:
        """Carry out the `allreduce` that `call` describes, with arguments that were checked. For this library."""
        self._allreduce.begin(tensor, describe(tensor), call, self.close, blocking=True)

    def submit(self, plan: Plan[T], timeout: float) -> Handle[T]:
        """Start a collective that is staged. For this library."""
        self._engine.check()
        return self._submission.submit(plan, timeout)

    def promise(self, tensor: T, name: str, arrivals: Sequence[Arrival] = ()) -> Handle[T]:
        """Return a handle for several collectives together, which its caller completes. For this library."""
        self._engine.check()
        handle = Handle(tensor, name, self._engine, arrivals)
        self._engine.handles.add(handle)
        return handle

    def follow(self, task: Callable[[], object]) -> None:
        """Run a task in a thread where it may wait for collectives. For this library."""
        self._engine.continuations.run(task)

    @property
    def local(self) -> bool:
        """Whether all ranks share their host's memory, so that nothing goes to a switch."""
        return self._running.local

    @property
    def failed(self) -> bool:
        """Whether every call raises an error from now on. For this library."""
        return self._engine.failure is not None

    def stats(self) -> Stats:
        """Return the statistics so far."""
        return Stats.of(self._engine, self._allreduce.sites.all(), local=self._running.local, threads=self._threads)

    def drain(self) -> None:
        """Wait until no collective is in flight, then raise the error of one that failed meanwhile."""
        self._submission.drain()

    def close(self) -> None:
        """Leave the job, which ends when all ranks have left.

        Collectives that are still in flight fail, and end the job for all ranks at once. May be called repeatedly.
        A `with` block first waits for its collectives; after an exception it ends the job for all ranks.
        """
        running = self.detach()
        if running is not None:
            running.leave()

    def abort(self) -> None:
        """End the job for all ranks at once, unless this rank has left it. Collectives in flight fail."""
        running = self.detach()
        if running is not None:
            running.leave(well=False)

    def detach(self) -> RunningJob | None:
        """Return the running job to the first caller, which has to leave it; None to later ones. For this library."""
        return self._running if self._finalizer.detach() is not None else None

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        well = False
        try:
            if error is None or (isinstance(error, SystemExit) and not error.code):
                self.drain()
                well = True
        finally:
            if well:
                self.close()
            else:
                self.abort()  # so that the other ranks do not wait for this rank's next call

    def __repr__(self) -> str:
        failure = self._engine.failure
        state = "" if failure is None else f", ended: {failure}"
        return (
            f"<Communicator: rank {self.rank} of {self.world_size} in job {self._options.job!r} at "
            f"{self._options.controller}, "
            f"{self._way()}{state}>"
        )

    def _way(self) -> str:
        if self._running.local:
            return "in its host's memory"
        membership = self._running.membership
        if membership.leader != self.rank:
            return f"rank {membership.leader} sends for its host"
        count = len(membership.colocated)
        if count > 1:
            return f"{self._options.transport}, for {count} ranks of its host"
        return f"{self._options.transport}, {self._threads} threads" if self._threads > 1 else self._options.transport

    @property
    def _threads(self) -> int:
        return 1 if self._running.local else self._running.membership.threads

    def _time_limit(self, timeout: float | None) -> float:
        return self._options.timeout if timeout is None else settings.seconds("timeout", timeout)

    def _form(self, wire: WireChoice | None) -> WireChoice:
        return self._wire if wire is None else settings.wire(wire)
