# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed process group whose collectives go through the switch.

What the switch can do nothing for goes through a Gloo group underneath: send and receive, gather and scatter,
all-to-all, and reductions of dtypes or with operations that it cannot add. `torch.distributed.ProcessGroup` finds that
group by itself for all that is not overridden here.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceScatterOptions,
)
from torch.distributed import DistBackendError

from p4reduce import settings
from p4reduce.collectives import moves, reductions
from p4reduce.collectives.plan import Group, Plan, nothing
from p4reduce.communicator import Communicator
from p4reduce.continuations import Continuations
from p4reduce.distributed.by_gloo import ByGloo
from p4reduce.distributed.options import NAME, Options
from p4reduce.distributed.premultiplied import by_gloo, multiplied, summing
from p4reduce.distributed.queue import Queue
from p4reduce.distributed.restarts import agreed, naming_an_earlier_start
from p4reduce.distributed.seats import Seats, with_own_client
from p4reduce.distributed.support import alike, as_list, can_move, can_reduce, how, reducing, tell_of_gloo
from p4reduce.distributed.traffic import Counting, Traffic
from p4reduce.distributed.work import QueuedWork, SwitchWork, Works, as_backend_error
from p4reduce.errors import P4ReduceError
from p4reduce.handle import Handle
from p4reduce.profiles import span
from p4reduce.tensors.dense import WireChoice


class SwitchGroup(ByGloo):
    """A group of ranks, and its jobs.

    The default group joins its job at once, so that a wrong address is told where it is given; another group at its
    first collective on the switch, as many of them never have one. Each has a name that no other group or run has.
    """

    def __init__(self, group: Any, options: Options) -> None:
        """`group`: torch.distributed's `_DistributedBackendOptions`."""
        super().__init__(group.group_rank, group.group_size)
        self._rank, self._size = group.group_rank, group.group_size
        self._timeout: timedelta = group.timeout
        self._sequence = 0
        self._threads = Continuations(f"p4reduce group {group.group_id}")
        self._queue = Queue(self._threads)
        self._counting = Counting()
        self._members = Group(self._rank, self._size)
        self._wire = options.wire
        self._store = group.store
        with naming_an_earlier_start():
            self._gloo: Any = self._make_gloo("gloo/")
        self._store = PrefixStore(f"{NAME}/{agreed(self._gloo, self._timeout)}/", group.store)
        self._seats = Seats(self._store, self._rank, self._size, group.group_id, options)
        self._spare: Any = None
        self._gloo._set_sequence_number_for_group()
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, self._gloo)
        if not group.global_ranks_in_group:
            try:
                self._in_turn(self._join_at_once)
            except BaseException:
                self._seats.abort()
                raise

    def _join_at_once(self) -> None:
        try:
            self._seats.enter(0, self._timeout.total_seconds())
        except Exception as error:
            raise as_backend_error(error) from error

    def _make_gloo(self, prefix: str) -> Any:
        return ProcessGroupGloo(PrefixStore(prefix, self._store), self._rank, self._size, timeout=self._timeout)

    def communicator(self) -> Communicator:
        """The group's own of now, which joins the job when it is first asked for: on all ranks. An operation of many
        bytes may give it another. Raises DistBackendError where the group goes without a switch."""
        limit = self._timeout.total_seconds()
        communicator: Communicator | None = self._in_turn(lambda: self._seated(0, limit))
        if communicator is None:
            raise DistBackendError("the group goes through Gloo: no switch had slots for it")
        return communicator

    def traffic(self) -> Traffic:
        """How much of this rank's calls the switch has carried so far, and how much Gloo."""
        sent, received = self._seats.moved()
        return self._counting.traffic(sent, received)

    def _in_turn(self, task: Callable[[], Any]) -> Any:
        """What the task returns, after all that is queued. Signals interrupt the waiting."""
        turn: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                turn.set_result(task())
            except BaseException as error:
                turn.set_exception(error.with_traceback(None))

        self._queue.add(run)
        return turn.result()

    def _seated(self, nbytes: int, limit: float) -> Communicator | None:
        """The communicator of a collective of so many bytes. Raises DistBackendError."""
        try:
            return self._seats.communicator(nbytes, limit)
        except Exception as error:
            raise as_backend_error(error) from error

    def name(self) -> str:
        """The backend's."""
        return NAME

    getBackendName = name  # as C++ calls it

    def shutdown(self) -> None:
        """Leaves the job, together with the other ranks, for which it does not wait. Collectives that have not begun
        fail."""
        self._seats.close()
        self._threads.close(0)

    def abort(self) -> None:
        """Ends the job for all ranks at once, while they join it or later, from any thread."""
        self._seats.abort()
        self._threads.close(0)
        for gloo in (self._gloo, self._spare):
            with contextlib.suppress(RuntimeError):  # of releases whose Gloo cannot
                if gloo is not None:
                    gloo.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        """For collectives from now on."""
        self._timeout = timeout
        for gloo in (self._gloo, self._spare):
            if gloo is not None:
                gloo.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives there were, whoever carried them."""
        return self._sequence + int(self._gloo._get_sequence_number_for_group())

    # What the switch does. Names and arguments are torch.distributed's; where it has two names, newer releases use the
    # one that has a definition here.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Of dense or sparse tensors, each by itself."""
        tensors, opts = as_list(tensors), reducing(opts, AllreduceOptions)
        return self._start([self._allreduce(tensor, opts) for tensor in tensors], tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Of several tensors."""
        given = reducing(opts, AllreduceCoalescedOptions)
        options = AllreduceOptions()
        options.reduceOp, options.timeout = given.reduceOp, given.timeout
        return self.allreduce(tensors, options)

    def _allreduce(self, tensor: torch.Tensor, opts: Any) -> _Call:
        call = self._call("all_reduce", can_reduce(tensor, opts.reduceOp), [tensor], opts)
        if not call.can:
            tell_of_gloo(call.name, tensor)
        call.by_gloo = lambda gloo: by_gloo(gloo.allreduce, tensor, opts)
        op, factor = how(opts)
        if tensor.is_sparse:
            call.rows = lambda each: each.allreduce_async(tensor, op, factor=factor, timeout=call.limit)
        else:
            call.stage = lambda wire: reductions.allreduce(self._members, tensor, op, factor, wire)
        return call

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """To rank `opts.rootRank`."""
        (tensor,) = tensors = as_list(tensors)
        can = can_reduce(tensor, opts.reduceOp) and not tensor.is_sparse
        call, root, (op, factor) = self._call("reduce", can, tensors, opts), opts.rootRank, how(opts)
        call.stage = lambda wire: reductions.reduce(self._members, tensor, root, op, factor, wire)
        call.by_gloo = lambda gloo: by_gloo(gloo.reduce, tensor, opts, result=self._rank == root)
        return self._start([call])

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """From rank `opts.rootRank`."""
        (tensor,) = tensors = as_list(tensors)
        call, root = self._call("broadcast", can_move(tensor), tensors, opts), opts.rootRank
        call.stage = lambda _: moves.broadcast(self._members, tensor, root)
        call.by_gloo = lambda gloo: gloo.broadcast(tensors, opts)
        return self._start([call])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into a list of tensors, of which each has its rank's shape."""
        opts = opts or AllgatherOptions()
        (out,), (given,) = (outputs, inputs) if isinstance(inputs, list) else ([outputs], [inputs])
        if len(out) != self._size or not alike(out[self._rank], given):
            return self._gloo.allgather([out], [given], opts)  # which says what is wrong
        can = all(can_move(tensor) and tensor.dtype == given.dtype for tensor in (given, *out))
        call = self._call("all_gather", can, out, opts)
        call.stage = lambda _: moves.all_gather_apart(self._members, given, out)
        call.by_gloo = lambda gloo: self._gather_by_gloo(gloo, out, given, opts)
        return self._start([call])

    def _gather_by_gloo(self, gloo: Any, out: list[torch.Tensor], given: torch.Tensor, opts: Any) -> Any:
        if all(alike(each, given) for each in out):
            return gloo.allgather([out], [given], opts)
        out[self._rank].copy_(given)
        works = []
        for rank, each in enumerate(out):  # whose shapes Gloo's allgather does not take
            root = BroadcastOptions()
            root.rootRank, root.timeout = rank, opts.timeout
            works.append(gloo.broadcast([each], root))
        return Works(works, out)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Into one tensor of `size()` times as many elements."""
        return self._start([self._all_gather_single(output, given, opts or AllgatherOptions())])

    def _all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> _Call:
        call = self._call("all_gather_single", can_move(output) and can_move(given), [output], opts)
        call.stage = lambda _: moves.all_gather(self._members, given, output.view(self._size, *given.shape))
        call.by_gloo = lambda gloo: gloo._allgather_base(output, given, opts)
        return call

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into one tensor for each input."""
        opts, pairs = opts or AllgatherOptions(), zip(outputs, inputs, strict=True)
        return self._start([self._all_gather_single(output, given, opts) for output, given in pairs], list(outputs))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of a list of tensors, one for each rank."""
        opts = reducing(opts, ReduceScatterOptions)
        (out,), (given,) = (outputs, inputs) if isinstance(outputs, list) else ([outputs], [inputs])
        can = all(can_reduce(tensor, opts.reduceOp) and alike(tensor, out) for tensor in (out, *given))
        call, (op, factor) = self._call("reduce_scatter", can, [*given, out], opts, [out]), how(opts)
        call.stage = lambda wire: reductions.reduce_scatter(self._members, torch.stack(given), out, op, factor, wire)
        call.by_gloo = lambda gloo: gloo.reduce_scatter([out], [multiplied(given, opts)], summing(opts))
        return self._start([call])

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Of one tensor of `size()` times as many elements."""
        return self._start([self._reduce_scatter_single(output, given, reducing(opts, ReduceScatterOptions))])

    def _reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> _Call:
        can, (op, factor) = can_reduce(given, opts.reduceOp), how(opts)
        call = self._call("reduce_scatter_single", can, [given], opts, [output])
        call.stage = lambda wire: reductions.reduce_scatter(
            self._members, given.reshape(self._size, *output.shape), output, op, factor, wire
        )
        call.by_gloo = lambda gloo: gloo._reduce_scatter_base(output, *multiplied([given], opts), summing(opts))
        return call

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of one tensor for each output."""
        opts, pairs = reducing(opts, ReduceScatterOptions), zip(outputs, inputs, strict=True)
        calls = [self._reduce_scatter_single(output, given, opts) for output, given in pairs]
        return self._start(calls, list(outputs))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        """Of all ranks."""
        opts = opts or BarrierOptions()
        call = self._call("barrier", True, [], opts)
        call.stage = lambda _: moves.barrier(self._members)
        call.by_gloo = lambda gloo: gloo.barrier(opts)
        return self._start([call])

    def _call(
        self,
        name: str,
        can: bool,
        tensors: list[torch.Tensor],
        opts: Any,
        outputs: list[torch.Tensor] | None = None,
    ) -> _Call:
        """tensors: of the same sizes on all ranks, which together are as large as the collective.
        outputs: hold the result in the end; by default `tensors`."""
        nbytes = sum(0 if tensor.is_sparse else tensor.nbytes for tensor in tensors)
        return _Call(name, can, nbytes, self._limit(opts), tensors if outputs is None else outputs)

    def _start(self, calls: list[_Call], outputs: list[torch.Tensor] | None = None) -> Any:
        """Begins collectives as one work, on the switch, if that can carry them and has slots, else by Gloo.

        All are staged before the first begins, so that a call which is refused has changed nothing.
        """
        try:
            if any(call.can for call in calls):
                self._seats.check()
            for call in calls:
                if call.can and call.stage is not None and not self._seats.without:
                    call.plan = call.stage(settings.wire(self._wire))
        except P4ReduceError as error:
            raise as_backend_error(error) from error
        # Gloo, which refuses what it cannot do only now, comes first.
        by_gloo = {id(call): self._to_gloo(call, self._gloo) for call in calls if not call.can}
        works = [self._begin(call) if call.can else by_gloo[id(call)] for call in calls]
        return works[0] if len(works) == 1 else Works(works, outputs or [])

    def _to_gloo(self, call: _Call, gloo: Any) -> Any:
        self._counting.count("gloo", call.name, call.outputs, call.nbytes or None)
        return call.by_gloo(gloo)

    def _begin(self, call: _Call) -> Any:
        """At once where no rank has to be waited for and nothing is queued, else in turn."""
        self._sequence += 1
        with span(call.name):
            if self._queue.empty() and self._seats.at_hand(call.nbytes) and (call.rows is None or self._seats.without):
                return self._carry(call)
            work = QueuedWork(call.name, call.outputs, self._threads)
            streams = _streams(call.outputs)

            def start() -> Any:
                with contextlib.ExitStack() as stack:
                    for stream in streams:
                        stack.enter_context(torch.cuda.stream(stream))
                    return self._carry(call)

            self._queue.add(lambda: work.begin(start))
            return work

    def _carry(self, call: _Call) -> Any:
        """Begins a collective whose turn it is. By Gloo, in a group for such alone: only there are they in the same
        order on all ranks, as what is not queued does not wait for them."""
        communicator = self._seated(call.nbytes, call.limit)
        if communicator is None:
            if self._spare is None:
                self._store = with_own_client(self._store)
                self._spare = self._make_gloo("spare gloo/")
            return self._to_gloo(call, self._spare)
        self._counting.count("memory" if communicator.local else "switch", call.name, call.outputs, call.nbytes or None)
        try:
            if call.rows is not None:
                return SwitchWork(call.rows(communicator), call.outputs, call.name)
            assert call.plan is not None
            return SwitchWork(communicator.carry(call.plan, call.limit), call.outputs, call.name)
        except P4ReduceError as error:
            raise as_backend_error(error) from error

    def _limit(self, opts: Any) -> float:
        """Seconds; options hold a negative time where nobody has given one."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else self._timeout
        return float(timeout.total_seconds())


@dataclass
class _Call:
    """A collective that has been called."""

    name: str
    """In profiles."""
    can: bool
    """Whether the switch can carry it."""
    nbytes: int
    limit: float
    outputs: list[torch.Tensor]
    by_gloo: Callable[[Any], Any] = nothing
    stage: Callable[[WireChoice], Plan[Any]] | None = None
    rows: Callable[[Communicator], Handle[Any]] | None = None
    """In the place of `stage`, of what takes several operations: begins it, and waits for other ranks meanwhile."""
    plan: Plan[Any] | None = None


def _streams(tensors: list[torch.Tensor]) -> list[Any]:
    """Those that are current here, of the tensors' devices."""
    return [torch.cuda.current_stream(device) for device in {each.device for each in tensors if each.is_cuda}]
