# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed process group whose collectives go through the switch.

A Gloo group underneath carries out the others: send and receive, gather and scatter, all-to-all, and reductions of
dtypes or operations that the switch cannot add. `torch.distributed.ProcessGroup` itself finds the Gloo group for
methods that are not overridden here.

A call begins at once if no other call is queued and its group has joined its job; else the group's `SerialExecutor`
begins it in turn (`_begin`). So the collectives of a group begin in call order, which is the same on all ranks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
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
    ReduceOptions,
    ReduceScatterOptions,
)
from torch.distributed import Backend, DistBackendError

from p4reduce import settings
from p4reduce.api.communicator import Communicator
from p4reduce.api.profiles import span
from p4reduce.collectives import moves, reductions
from p4reduce.collectives.plan import Collective, Group, Plan, nothing
from p4reduce.distributed.arguments import as_list, as_lists, options
from p4reduce.distributed.by_gloo import ByGloo
from p4reduce.distributed.compiled import called_by_cpp
from p4reduce.distributed.copies import Copies, as_bytes, as_lists_like, flattened
from p4reduce.distributed.group_jobs import GroupJobs, with_own_client
from p4reduce.distributed.options import NAME, Options
from p4reduce.distributed.premultiplied import is_premultiplied, multiply, summing
from p4reduce.distributed.restarts import connect, naming_an_earlier_start, wait_for_store_to_end
from p4reduce.distributed.support import (
    alike,
    can_move,
    can_reduce,
    check_dtypes,
    check_sizes,
    how,
    tell_of_gloo,
)
from p4reduce.distributed.traffic import Counting, Traffic
from p4reduce.distributed.work import (
    CompletedWork,
    PythonWork,
    QueuedWork,
    SwitchWork,
    Unwaited,
    Works,
    as_backend_error,
    leave_all,
)
from p4reduce.engine.continuations import Continuations, SerialExecutor
from p4reduce.engine.handle import BlockingCall, Handle
from p4reduce.errors import P4ReduceError, without_frames
from p4reduce.tensors.spec import WireChoice, describe

# Seconds that other ranks wait for rank 0 when the default group is destroyed: few, since rank 0 may have more to do.
# After a failure it rarely has, and groups are often made again, so the wait is longer.
_STORE_ENDS_S, _STORE_ENDS_AFTER_FAILURE_S = 1.0, 10.0


@called_by_cpp
class SwitchGroup(ByGloo):
    """A process group and its jobs.

    The default group joins its job at once, so that a wrong address raises where it was given. Another group joins at
    its first collective on the switch, since many never have one. Each job has a name that no other group or run has.
    """

    def __init__(self, group: Any, options: Options) -> None:
        """Connect all ranks by Gloo; the default group also joins its job.

        group: the `_DistributedBackendOptions` of torch.distributed.
        """
        super().__init__(group.group_rank, group.group_size)
        self._rank, self._size = group.group_rank, group.group_size
        self._timeout: timedelta = group.timeout
        self._sequence = 0
        self._threads = Continuations(f"p4reduce group {group.group_id}")
        self._executor = SerialExecutor(self._threads)
        self._inline_threads: list[int] = []  # threads in `_allreduce_inline`; calls of other threads must wait
        self._counting = Counting()
        self._unwaited = Unwaited()
        self._members = Group(self._rank, self._size)
        self._store = self._given_store = group.store
        self._options = options
        self._splits: Counter[tuple[int, ...]] = Counter()
        self._is_default = not group.global_ranks_in_group
        with naming_an_earlier_start():
            self._gloo, word = connect(self._make_gloo, group.store, self._rank, self._size, self._timeout)
        self._store = PrefixStore(f"{NAME}/{word}/", group.store)
        self._jobs = GroupJobs(self._store, self._rank, self._size, group.group_id, options)
        self._spare: Any = None
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in Backend.backend_capability[NAME]:
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, self._gloo)
        if self._is_default:
            try:
                self._in_turn(self._join_at_once)
            except BaseException:
                self._jobs.abort()
                raise
        self._wire = settings.wire(options.wire)  # after the join, which reports a wrong wire to the other ranks

    def _join_at_once(self) -> None:
        try:
            self._jobs.enter(0, self._timeout.total_seconds())
        except Exception as error:
            raise as_backend_error(error) from error

    def _make_gloo(self, prefix: str) -> Any:
        return ProcessGroupGloo(PrefixStore(prefix, self._store), self._rank, self._size, timeout=self._timeout)

    def communicator(self) -> Communicator:
        """Return the group's current communicator. The first call joins the job, so all ranks must make it.

        The first operation of many bytes may replace the communicator. Raises DistBackendError if the group has no
        switch.
        """
        limit = self._timeout.total_seconds()
        communicator: Communicator | None = self._in_turn(lambda: self._communicator_for(0, limit))
        if communicator is None:
            raise DistBackendError("this group uses Gloo: no switch had free slots for it")
        return communicator

    def traffic(self) -> Traffic:
        """Return how much of this rank's calls the switch has carried so far, and how much Gloo."""
        sent, received = self._jobs.moved()
        return self._counting.traffic(sent, received)

    def _in_turn(self, task: Callable[[], Any]) -> Any:
        """Run the task after all queued ones, and return its result. Signals interrupt the wait."""
        turn: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._executor.submit(partial(_settle, turn, task))
        try:
            return turn.result()
        finally:
            del turn  # it refers to the error, whose traceback refers to this frame

    def _communicator_for(self, nbytes: int, limit: float) -> Communicator | None:
        """Return the communicator for a collective of `nbytes`. Raises DistBackendError."""
        try:
            return self._jobs.communicator(nbytes, limit)
        except Exception as error:
            raise as_backend_error(error) from error

    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    getBackendName = name  # the name of this method in C++

    def shutdown(self) -> None:
        """Leave the job without waiting for the other ranks. Collectives that have not begun fail."""
        timeout = _STORE_ENDS_AFTER_FAILURE_S if self._jobs.failed else _STORE_ENDS_S
        self._jobs.close()
        self._threads.close(0)
        self._unwaited.clear()
        if self._is_default and self._rank:
            wait_for_store_to_end(self._given_store, timeout)

    def abort(self, error: P4ReduceError | None = None) -> None:
        """End the job for all ranks at once, also while they join it. Any thread may call this.

        error: the error that later calls raise.
        """
        self._jobs.abort(error)
        self._threads.close(0)
        self._unwaited.clear()
        for gloo in (self._gloo, self._spare):
            with contextlib.suppress(RuntimeError):  # Gloo of some releases cannot abort
                if gloo is not None:
                    gloo.abort()

    def get_group_store(self) -> Any:
        """Return the store that the group was made with. A group made in Python cannot pass it to C++."""
        return self._given_store

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,  # noqa: ARG002
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002
    ) -> SwitchGroup | None:
        """Return a group of some of this group's ranks, with the same options; None on a rank that is not among them.

        Only these ranks have to call this. `opts` and `device_types` are for backends in C++, and ignored.
        """
        members = sorted(ranks)
        if len(set(members)) != len(members) or not members or members[0] < 0 or members[-1] >= self._size:
            raise ValueError(f"ranks={list(ranks)}: accepted are distinct ranks from 0 to {self._size - 1}")
        if self._rank not in members:
            return None
        self._splits[tuple(members)] += 1
        count = self._splits[tuple(members)]
        name = group_name or f"{self.group_name}:split:{members}" + (f":{count}" if count > 1 else "")
        backend_options = SimpleNamespace(
            store=PrefixStore(f"{name}/{count}/", self._given_store),
            group_rank=members.index(self._rank),
            group_size=len(members),
            timeout=timeout or self._timeout,
            group_id=name,
            global_ranks_in_group=members,
        )
        group = SwitchGroup(backend_options, self._options)
        group._set_group_name(name)
        group._set_group_desc(group_desc or f"{self.group_desc}:split")
        return group

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Raise NotImplementedError: a group gets its ranks when it is made."""
        raise NotImplementedError(
            f"{NAME} does not support merge_remote_group; make one group of all ranks with init_process_group"
        )

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of collectives from now on."""
        self._timeout = timeout
        for gloo in (self._gloo, self._spare):
            if gloo is not None:
                gloo.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives so far, by the switch and by Gloo."""
        return self._sequence + int(self._gloo._get_sequence_number_for_group())

    # Collectives of the switch. Names and arguments are those of torch.distributed; if it has two names for one method,
    # newer releases use the one that is defined here, and the other is an alias.

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> Any:
        """Reduce one dense or sparse tensor. Gloo reduces several tensors, over the ranks and with each other."""
        given = as_list(tensors if tensor is None else tensor)
        opts = options(AllreduceOptions, opts, reduceOp=op, timeout=timeout)
        return self._allreduce_inline(given, opts) or self._start([self._allreduce(given, opts)])

    def _allreduce_inline(self, tensors: list[torch.Tensor], opts: Any) -> PythonWork | None:
        """Execute a blocking all_reduce in this thread, if it need not wait for other calls or for a join.

        Returns None, without having begun, for any other call and for tensors on a device.
        """
        if getattr(opts, "asyncOp", True) or len(tensors) != 1 or not self._executor.is_idle:
            return None
        data = tensors[0].data
        if not (data.is_cpu and can_reduce(data, opts.reduceOp)) or data.is_sparse:
            return None
        nbytes = data.nbytes
        if not self._jobs.at_hand(nbytes):
            return None
        limit = self._limit(opts)
        communicator = self._communicator_for(nbytes, limit)
        if communicator is None:
            return None
        self._sequence += 1
        thread = threading.get_ident()
        self._inline_threads.append(thread)
        try:
            with span("all_reduce"), span("all_reduce wait"):
                communicator.execute(data, Collective(*how(opts), self._wire, "blocks", None, limit))
        except P4ReduceError as error:
            raise as_backend_error(error) from error
        finally:
            self._inline_threads.remove(thread)
        self._counting.count("memory" if communicator.local else "switch", "all_reduce", tensors, nbytes)
        return CompletedWork(tensors).kept_by(self._unwaited)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce several tensors, each by itself."""
        given = options(AllreduceCoalescedOptions, opts, reduceOp=None)
        each_opts = AllreduceOptions()
        each_opts.reduceOp, each_opts.timeout = given.reduceOp, given.timeout
        if hasattr(given, "asyncOp"):  # in newer releases of PyTorch
            each_opts.asyncOp = given.asyncOp
        tensors = as_list(tensors)
        if not tensors:
            return self._gloo.allreduce_coalesced(tensors, given)  # raises the proper error
        copies = Copies(contiguous=False)
        buffers = copies.in_place(tensors)
        work = self._start([self._allreduce([each], each_opts) for each in buffers], tensors)
        for each in tensors:  # like Gloo, and unlike `allreduce`
            if not each.is_sparse and not each.is_inference():
                torch.autograd.graph.increment_version(each)
        return copies.finish(work, tensors)

    def _allreduce(self, tensors: list[torch.Tensor], opts: Any) -> _Call:
        can = len(tensors) == 1 and can_reduce(tensors[0], opts.reduceOp)
        call, scaled = self._call("all_reduce", can, tensors, opts), is_premultiplied(opts)

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            return gloo.allreduce(multiply(copies.in_place(tensors, always=scaled), opts), summing(opts))

        call.by_gloo = by_gloo
        if not can:
            if tensors:
                tell_of_gloo(call.name, tensors[0])
            return call
        (tensor,), (op, factor) = tensors, how(opts)
        if tensor.is_sparse:
            limit = call.limit  # the function must not refer to the call, which refers to the function
            call.rows = lambda each: each.allreduce_async(tensor, op, factor=factor, timeout=limit)
        else:
            data = tensor.data
            call.stage = lambda wire: reductions.allreduce(
                self._members, data, describe(data), Collective(op, factor, wire)
            )
        return call

    def reduce(
        self,
        tensors: Any = None,
        opts: Any = None,
        op: Any = None,
        timeout: Any = None,
        *,
        tensor: Any = None,
        root: Any = None,
    ) -> Any:
        """Reduce a tensor to rank `opts.rootRank`."""
        given = as_list(tensors if tensor is None else tensor)
        opts = options(ReduceOptions, opts, rootRank=root, reduceOp=op, timeout=timeout)
        can = len(given) == 1 and can_reduce(given[0], opts.reduceOp) and not given[0].is_sparse
        call = self._call("reduce", can and self._is_root(opts), given, opts)
        here = opts.rootRank == self._rank

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            # Gloo keeps intermediate sums in the tensors of the other ranks.
            staged = (
                copies.in_place(given, always=is_premultiplied(opts)) if here else copies.inputs(given, always=True)
            )
            return gloo.reduce(multiply(staged, opts), summing(opts))

        call.by_gloo = by_gloo
        op_name, factor = how(opts)
        call.stage = lambda wire: reductions.reduce(
            self._members, given[0].data, opts.rootRank, Collective(op_name, factor, wire)
        )
        return self._start([call])

    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> Any:
        """Broadcast from rank `opts.rootRank`; of several tensors, the one with index `opts.rootTensor`."""
        given = as_list(tensors if tensor is None else tensor)
        opts = options(BroadcastOptions, opts, rootRank=root, timeout=timeout)
        can = len(given) == 1 and can_move(given[0]) and self._is_root(opts)
        call, here = self._call("broadcast", can, given, opts), opts.rootRank == self._rank

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            only_read = here and len(given) == 1
            staged = copies.inputs(given) if only_read else copies.in_place(given)
            return gloo.broadcast(as_bytes(staged) if can else staged, opts)

        call.by_gloo = by_gloo
        call.stage = lambda _: moves.broadcast(self._members, given[0].data, opts.rootRank)
        return self._start([call])

    def _is_root(self, opts: Any) -> bool:
        """Return whether the options name a rank of the group, and its first tensor. Gloo refuses all else."""
        return bool(0 <= opts.rootRank < self._size and opts.rootTensor == 0)

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *,
        input_tensor: Any = None,
        timeout: Any = None,
    ) -> Any:
        """Gather a tensor of each rank into a list, in which each tensor has its rank's shape."""
        opts = options(AllgatherOptions, opts, timeout=timeout)
        outputs, inputs = as_lists(output_tensors, input_tensors if input_tensor is None else input_tensor)
        flat = flattened(outputs)
        fits = len(inputs) == len(outputs) == 1 and len(flat) == self._size and alike(flat[self._rank], inputs[0])
        can = fits and all(can_move(each) and each.dtype == inputs[0].dtype for each in (*inputs, *flat))
        call = self._call("all_gather", can, flat, opts, flat if len(outputs) == 1 else outputs)
        call.stage = lambda _: moves.all_gather_apart(self._members, inputs[0], flat)

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            if fits and not all(alike(each, inputs[0]) for each in flat):
                return self._gather_shapes_by_gloo(
                    gloo, copies.outputs(flat, always=True, raises_version=True), inputs[0], opts
                )
            staged, read = copies.outputs(flat, inputs, raises_version=True), copies.inputs(inputs)
            if can:
                return gloo.allgather([as_bytes(staged)], as_bytes(read), opts)
            return gloo.allgather(as_lists_like(outputs, staged), read, opts)

        call.by_gloo = by_gloo
        return self._start([call])

    def _gather_shapes_by_gloo(self, gloo: Any, out: list[torch.Tensor], given: torch.Tensor, opts: Any) -> Any:
        """Gather tensors of different shapes, which Gloo's allgather does not accept, by broadcasts."""
        out[self._rank].copy_(given)
        works = []
        for rank, each in enumerate(out):
            root = BroadcastOptions()
            root.rootRank, root.timeout = rank, opts.timeout
            works.append(gloo.broadcast(as_bytes([each]), root))
        return Works(works, out)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Gather a tensor of each rank into one of `size()` times as many elements."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several tensors of each rank, each into one tensor of its own."""
        opts, outputs = options(AllgatherOptions, opts, timeout=None), list(outputs)
        copies = Copies()
        # A single input may be a part of its output, at this rank's index: it is read before the output is written.
        buffers = copies.outputs(outputs, inputs if len(outputs) > 1 else (), raises_version=True)
        pairs = zip(buffers, inputs, strict=True)
        return copies.finish(self._start([self._all_gather_single(*pair, opts) for pair in pairs], outputs), outputs)

    def _all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> _Call:
        check_sizes(("output_tensor", output), ("input_tensor", given), self._size)
        can = can_move(output) and can_move(given)
        call = self._call("all_gather_single", can, [output], opts)
        call.stage = lambda _: moves.all_gather(self._members, given, output.view(self._size, *given.shape))

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            staged = [*copies.outputs([output], [given], raises_version=True), *copies.inputs([given])]
            return gloo._allgather_base(*(as_bytes(staged) if can else staged), opts)

        call.by_gloo = by_gloo
        return call

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        output: Any = None,
        input: Any = None,
        op: Any = None,
    ) -> Any:
        """Reduce a list of tensors, one for each rank, and give each rank its own."""
        opts = options(ReduceScatterOptions, opts, reduceOp=op, timeout=timeout)
        inputs, outputs = as_lists(
            input_tensors if input is None else input, output_tensors if output is None else output
        )
        flat = flattened(inputs)
        can = len(outputs) == len(inputs) == 1 and len(flat) == self._size
        can = can and all(can_reduce(each, opts.reduceOp) and alike(each, outputs[0]) for each in (*outputs, *flat))
        call, (op_name, factor) = self._call("reduce_scatter", can, [*flat, *outputs], opts, outputs), how(opts)
        call.stage = lambda wire: reductions.reduce_scatter(
            self._members, torch.stack([each.detach() for each in flat]), outputs[0], Collective(op_name, factor, wire)
        )

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            out = copies.outputs(outputs, flat, raises_version=True)
            staged = multiply(copies.inputs(flat, always=is_premultiplied(opts)), opts)
            return gloo.reduce_scatter(out, as_lists_like(inputs, staged), summing(opts))

        call.by_gloo = by_gloo
        return self._start([call])

    def reduce_scatter_single(self, outputTensor: Any, inputTensor: Any, opts: Any = None) -> Any:
        """Reduce a tensor of `size()` times as many elements as the output, and give each rank its part."""
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce several tensors, and give each rank its part of each."""
        opts, outputs = options(ReduceScatterOptions, opts, reduceOp=None), list(outputs)
        copies = Copies(contiguous=False)
        buffers = copies.outputs(outputs, inputs if len(outputs) > 1 else (), raises_version=True)
        calls = [self._reduce_scatter_single(*pair, opts) for pair in zip(buffers, inputs, strict=True)]
        return copies.finish(self._start(calls, outputs), outputs)

    def _reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> _Call:
        check_sizes(("input", given), ("output", output), self._size)
        can, (op, factor) = can_reduce(given, opts.reduceOp), how(opts)
        call = self._call("reduce_scatter_single", can, [given], opts, [output])
        call.stage = lambda wire: reductions.reduce_scatter(
            self._members, given.reshape(self._size, *output.shape), output, Collective(op, factor, wire)
        )

        def by_gloo(gloo: Any, copies: Copies) -> Any:
            (out,) = copies.outputs([output], [given], raises_version=True)
            (staged,) = multiply(copies.inputs([given], always=is_premultiplied(opts)), opts)
            if can_move(out) and can_move(staged):  # Gloo compares first dimensions, and crashes if there is none
                out, staged = out.reshape(-1), staged.reshape(-1)
            return gloo._reduce_scatter_base(out, staged, summing(opts))

        call.by_gloo = by_gloo
        return call

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Any:
        """Wait until all ranks have called this."""
        opts = options(BarrierOptions, opts, timeout=timeout)
        call = self._call("barrier", True, [], opts)
        call.stage = lambda _: moves.barrier(self._members)
        call.by_gloo = lambda gloo, _: gloo.barrier(opts)
        return self._start([call])

    def _call(
        self,
        name: str,
        can: bool,
        tensors: list[torch.Tensor],
        opts: Any,
        outputs: list[Any] | None = None,
    ) -> _Call:
        """Return a call without its functions.

        can: whether the switch can carry it out.
        tensors: tensors of the same sizes on all ranks, whose bytes are the collective's size.
        outputs: the tensors that hold the result in the end; by default `tensors`.
        """
        nbytes = 0
        for tensor in tensors:
            nbytes += 0 if tensor.is_sparse else tensor.nbytes
        waits = not getattr(opts, "asyncOp", True)
        return _Call(name, can, nbytes, self._limit(opts), tensors if outputs is None else outputs, waits=waits)

    def _start(self, calls: list[_Call], outputs: list[torch.Tensor] | None = None) -> Any:
        """Begin collectives as one work: on the switch, if it can carry them out and has slots, else by Gloo.

        All are staged before the first begins, so that a call that is refused has changed nothing. If the caller is
        going to wait at once, this waits already, so that no signal handler can interrupt in between.
        """
        try:
            waits = False
            for call in calls:
                waits = waits or call.waits
                if call.can:
                    self._jobs.check()
                    if call.stage is not None and not self._jobs.without:
                        call.plan = call.stage(self._wire)
        except P4ReduceError as error:
            raise as_backend_error(error) from error
        by_gloo: dict[int, Any] = {}
        try:
            with BlockingCall():
                for call in calls:  # calls of Gloo first, since Gloo checks them only now and may refuse
                    if not call.can:
                        by_gloo[id(call)] = self._to_gloo(call, self._gloo)
                works = [self._begin(call) if call.can else by_gloo[id(call)] for call in calls]
                work = works[0] if len(works) == 1 else Works(works, outputs or [])
                if waits:
                    work.wait()
        except BaseException as error:
            leave_all(list(by_gloo.values()), error)
            raise
        return work.kept_by(self._unwaited) if isinstance(work, PythonWork) else work

    def _to_gloo(self, call: _Call, gloo: Any) -> Any:
        self._counting.count("gloo", call.name, call.outputs, call.nbytes or None)
        check_dtypes(call.name, call.outputs)
        copies = Copies()
        return copies.finish(call.by_gloo(gloo, copies), call.outputs)

    def _begin(self, call: _Call) -> Any:
        """Begin a call at once, if it waits for no rank and nothing is queued, else queue it."""
        self._sequence += 1
        with span(call.name):
            own = threading.get_ident()
            waits_for_nobody = self._jobs.at_hand(call.nbytes) and all(thread == own for thread in self._inline_threads)
            if self._executor.is_idle and waits_for_nobody and (call.rows is None or self._jobs.without):
                return self._carry(call)
            work = QueuedWork(call.name, call.outputs, self._threads, self.abort)
            streams = _streams(call.outputs)

            def start() -> Any:
                with contextlib.ExitStack() as stack:
                    for stream in streams:
                        stack.enter_context(torch.cuda.stream(stream))
                    return self._carry(call)

            self._executor.submit(lambda: work.begin(start))
            return work

    def _carry(self, call: _Call) -> Any:
        """Begin a collective whose turn it is, on the switch or by Gloo.

        Gloo uses a second group for these calls. In the first one, calls that are not queued could come before or after
        them, and so in a different order on each rank.
        """
        communicator = self._communicator_for(call.nbytes, call.limit)
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
            return SwitchWork(communicator.submit(call.plan, call.limit), call.outputs, call.name)
        except P4ReduceError as error:
            raise as_backend_error(error) from error

    def _limit(self, opts: Any) -> float:
        """Return the call's time limit in seconds, or the group's: options hold a negative time if none was given."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else self._timeout
        return float(timeout.total_seconds())


@dataclass
class _Call:
    """A call of a collective."""

    name: str
    """The name in profiles and statistics."""
    can: bool
    """Whether the switch can carry it out."""
    nbytes: int
    limit: float
    outputs: list[Any]
    """Tensors, or lists of them."""
    by_gloo: Callable[..., Any] = nothing
    """Begins the call in a Gloo group, with copies of tensors that Gloo does not accept."""
    stage: Callable[[WireChoice], Plan[Any]] | None = None
    rows: Callable[[Communicator], Handle[Any]] | None = None
    """For calls of several operations, instead of `stage`: begins the call, and waits for other ranks meanwhile."""
    plan: Plan[Any] | None = None
    waits: bool = False
    """Whether the caller waits for the call at once, and no other code does."""


def _settle(turn: concurrent.futures.Future[Any], task: Callable[[], Any]) -> None:
    """Complete the future with the task's result or exception."""
    try:
        turn.set_result(task())
    except BaseException as error:
        turn.set_exception(without_frames(error))


def _streams(tensors: list[torch.Tensor]) -> list[Any]:
    """Return the current streams of the tensors' devices."""
    return [torch.cuda.current_stream(device) for device in {each.device for each in tensors if each.is_cuda}]
