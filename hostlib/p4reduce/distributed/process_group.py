# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed process group whose collectives go through the switch.

What the switch can do nothing for goes through a Gloo group underneath: send and receive, gather and scatter,
all-to-all, and reductions of dtypes or with operations that it cannot add. `torch.distributed.ProcessGroup` finds that
group by itself for all that is not overridden here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
    ReduceOp,
    ReduceScatterOptions,
)
from torch.distributed import DistBackendError

from p4reduce.collectives.moves import all_gather_apart
from p4reduce.communicator import Communicator
from p4reduce.distributed.options import NAME, Options
from p4reduce.distributed.seats import Seats
from p4reduce.distributed.work import SwitchWork, Works, as_backend_error
from p4reduce.errors import P4ReduceError
from p4reduce.handle import Handle
from p4reduce.tensors.dense import WORK_DTYPES

_OPS = [
    (ReduceOp.SUM, "sum"),
    (ReduceOp.PREMUL_SUM, "sum"),
    (ReduceOp.AVG, "average"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.MIN, "min"),
]


_Base: Any = ProcessGroup  # whose overloads say less than what callers pass


class SwitchGroup(_Base):  # type: ignore[misc]
    """A group of ranks, and its jobs.

    The default group joins its job at once, so that a wrong address is told where it is given; another group at its
    first collective on the switch, as many of them never have one. Each has a name that no other group or run has.
    """

    def __init__(self, group: Any, options: Options) -> None:
        """`group`: torch.distributed's `_DistributedBackendOptions`."""
        super().__init__(group.group_rank, group.group_size)
        self._rank, self._size = group.group_rank, group.group_size
        self._timeout: timedelta = group.timeout
        self._seats = Seats(PrefixStore(f"{NAME}/", group.store), self._rank, self._size, group.group_id, options)
        self._sequence = 0
        self._gloo: Any = ProcessGroupGloo(
            PrefixStore("gloo/", group.store), self._rank, self._size, timeout=self._timeout
        )
        self._gloo._set_sequence_number_for_group()
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, self._gloo)
        if not group.global_ranks_in_group:
            self._seats.take(0, self._timeout.total_seconds())

    def communicator(self) -> Communicator:
        """The group's own of now, which joins the job when it is first asked for: on all ranks. An operation of many
        bytes may give it another. Raises DistBackendError where the group goes without a switch."""
        communicator = self._seats.communicator(0, self._timeout.total_seconds())
        if communicator is None:
            raise DistBackendError("the group goes through Gloo: no switch had slots for it")
        return communicator

    def name(self) -> str:
        """The backend's."""
        return NAME

    getBackendName = name  # as C++ calls it

    def shutdown(self) -> None:
        """Leaves the job, together with the other ranks."""
        self._seats.close()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """For collectives from now on."""
        self._timeout = timeout
        self._gloo.set_timeout(timeout)

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives there were, whoever carried them."""
        return self._sequence + int(self._gloo._get_sequence_number_for_group())

    # What the switch does. Names and arguments are torch.distributed's; where it has two names, newer releases use the
    # one that has a definition here.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Of dense or sparse tensors, each by itself."""
        tensors, opts = _as_list(tensors), _reducing(opts, AllreduceOptions)
        return self._each([self._allreduce(tensor, opts) for tensor in tensors], tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Of several tensors."""
        given = _reducing(opts, AllreduceCoalescedOptions)
        options = AllreduceOptions()
        options.reduceOp, options.timeout = given.reduceOp, given.timeout
        return self.allreduce(tensors, options)

    def _allreduce(self, tensor: torch.Tensor, opts: Any) -> Any:
        return self._start(
            "all_reduce",
            _can_reduce(tensor, opts.reduceOp),
            [tensor],
            opts,
            lambda each, limit: each.allreduce_async(tensor, timeout=limit, **_how(opts)),
            lambda: _by_gloo(self._gloo.allreduce, tensor, opts),
        )

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """To rank `opts.rootRank`."""
        (tensor,) = tensors = _as_list(tensors)
        return self._start(
            "reduce",
            _can_reduce(tensor, opts.reduceOp) and not tensor.is_sparse,
            tensors,
            opts,
            lambda each, limit: each.reduce_async(tensor, opts.rootRank, timeout=limit, **_how(opts)),
            lambda: _by_gloo(self._gloo.reduce, tensor, opts, result=self._rank == opts.rootRank),
        )

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """From rank `opts.rootRank`."""
        (tensor,) = tensors = _as_list(tensors)
        return self._start(
            "broadcast",
            _can_move(tensor),
            tensors,
            opts,
            lambda each, limit: each.broadcast_async(tensor, opts.rootRank, timeout=limit),
            lambda: self._gloo.broadcast(tensors, opts),
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into a list of tensors, of which each has its rank's shape."""
        opts = opts or AllgatherOptions()
        (out,), (given,) = (outputs, inputs) if isinstance(inputs, list) else ([outputs], [inputs])
        if len(out) != self._size or not _alike(out[self._rank], given):
            return self._gloo.allgather([out], [given], opts)  # which says what is wrong
        return self._start(
            "all_gather",
            all(_can_move(tensor) and tensor.dtype == given.dtype for tensor in (given, *out)),
            out,
            opts,
            lambda each, limit: each.start(limit, all_gather_apart, given, out),
            lambda: self._gather_by_gloo(out, given, opts),
        )

    def _gather_by_gloo(self, out: list[torch.Tensor], given: torch.Tensor, opts: Any) -> Any:
        if all(_alike(each, given) for each in out):
            return self._gloo.allgather([out], [given], opts)
        out[self._rank].copy_(given)
        works = []
        for rank, each in enumerate(out):  # whose shapes Gloo's allgather does not take
            root = BroadcastOptions()
            root.rootRank, root.timeout = rank, opts.timeout
            works.append(self._gloo.broadcast([each], root))
        return Works(works, out)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Into one tensor of `size()` times as many elements."""
        opts = opts or AllgatherOptions()
        return self._start(
            "all_gather_single",
            _can_move(output) and _can_move(given),
            [output],
            opts,
            lambda each, limit: each.all_gather_async(given, out=output.view(self._size, *given.shape), timeout=limit),
            lambda: self._gloo._allgather_base(output, given, opts),
        )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into one tensor for each input."""
        pairs = zip(outputs, inputs, strict=True)
        return self._each([self.all_gather_single(output, given, opts) for output, given in pairs], list(outputs))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of a list of tensors, one for each rank."""
        opts = _reducing(opts, ReduceScatterOptions)
        (out,), (given,) = (outputs, inputs) if isinstance(outputs, list) else ([outputs], [inputs])
        return self._start(
            "reduce_scatter",
            all(_can_reduce(tensor, opts.reduceOp) and _alike(tensor, out) for tensor in (out, *given)),
            [*given, out],
            opts,
            lambda each, limit: each.reduce_scatter_async(torch.stack(given), out=out, timeout=limit, **_how(opts)),
            lambda: self._gloo.reduce_scatter([out], [_multiplied(given, opts)], _summing(opts)),
            [out],
        )

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Of one tensor of `size()` times as many elements."""
        opts = _reducing(opts, ReduceScatterOptions)
        return self._start(
            "reduce_scatter_single",
            _can_reduce(given, opts.reduceOp),
            [given],
            opts,
            lambda each, limit: each.reduce_scatter_async(
                given.reshape(self._size, *output.shape), out=output, timeout=limit, **_how(opts)
            ),
            lambda: self._gloo._reduce_scatter_base(output, *_multiplied([given], opts), _summing(opts)),
            [output],
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of one tensor for each output."""
        pairs = zip(outputs, inputs, strict=True)
        return self._each([self.reduce_scatter_single(output, given, opts) for output, given in pairs], list(outputs))

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        """Of all ranks."""
        opts = opts or BarrierOptions()
        return self._start(
            "barrier", True, [], opts, lambda each, limit: each.barrier_async(limit), lambda: self._gloo.barrier(opts)
        )

    def _start(
        self,
        name: str,
        can: bool,
        tensors: list[torch.Tensor],
        opts: Any,
        on_switch: Callable[[Communicator, float], Handle[Any]],
        by_gloo: Callable[[], Any],
        outputs: list[torch.Tensor] | None = None,
    ) -> Any:
        """Begins a collective on the switch, if that can carry it and has slots, else by Gloo.

        name: in profiles. tensors: of the same sizes on all ranks, which together are as large as the collective.
        outputs: hold the result in the end; by default `tensors`.
        """
        limit = self._limit(opts)
        nbytes = sum(0 if tensor.is_sparse else tensor.nbytes for tensor in tensors)
        communicator = self._seats.communicator(nbytes, limit) if can else None
        if communicator is None:
            return by_gloo()
        self._sequence += 1
        with _recorded(name):
            try:
                handle = on_switch(communicator, limit)
            except P4ReduceError as error:
                raise as_backend_error(error) from error
            return SwitchWork(handle, tensors if outputs is None else outputs)

    def _each(self, works: list[Any], outputs: list[torch.Tensor]) -> Any:
        """As one work."""
        return works[0] if len(works) == 1 else Works(works, outputs)

    def _limit(self, opts: Any) -> float:
        """Seconds; options hold a negative time where nobody has given one."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else self._timeout
        return float(timeout.total_seconds())


def _how(opts: Any) -> dict[str, Any]:
    """Arguments of a communicator's reductions."""
    op = opts.reduceOp
    return {"op": _op_name(op), "factor": float(op.factor) if op == ReduceOp.PREMUL_SUM else 1.0}


# Gloo multiplies nothing: a premultiplied sum's tensors are multiplied here, and then it is a sum.


def _by_gloo(begin: Callable[[Any, Any], Any], tensor: torch.Tensor, opts: Any, *, result: bool = True) -> Any:
    """Begins a reduction in place. result: whether this rank's tensor becomes it; else it stays as it is."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return begin([tensor], opts)
    (product,) = _multiplied([tensor], opts)
    if not result:
        return begin([product], _summing(opts))
    before = tensor.clone()
    tensor.copy_(product)
    try:
        return begin([tensor], _summing(opts))
    except BaseException:  # which Gloo raises before it begins
        tensor.copy_(before)
        raise


def _multiplied(tensors: list[torch.Tensor], opts: Any) -> list[torch.Tensor]:
    """What is to be added, in copies where it is multiplied: inputs stay as they are."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return tensors
    return [tensor.clone().mul_(opts.reduceOp.factor) for tensor in tensors]


def _summing(opts: Any) -> Any:
    """Options for what Gloo then adds: others than the caller's, which may be those of other tensors as well."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return opts
    sums = type(opts)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(opts, name):
            setattr(sums, name, getattr(opts, name))
    sums.reduceOp = ReduceOp.SUM
    return sums


def _recorded(name: str) -> contextlib.AbstractContextManager[object]:
    """An event of the profiler, if one runs.

    It ends when the work is under way, not with the work: that ends in another thread, for which a profiler that is
    being stopped does not wait.
    """
    if not torch._C._autograd._profiler_enabled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"{NAME}:{name}")


def _op_name(op: Any) -> str | None:
    """The communicator's, None where it has none."""
    return next((name for known, name in _OPS if op == known), None)


def _can_reduce(tensor: torch.Tensor, op: Any) -> bool:
    """Whether a communicator can: it adds the dtypes of `WORK_DTYPES`, and compares all that have an order."""
    name, dtype = _op_name(op), str(tensor.dtype).removeprefix("torch.")
    if tensor.is_sparse:
        return name in ("sum", "average") and dtype in WORK_DTYPES
    if not _can_move(tensor) or name is None:
        return False
    if name in ("max", "min"):
        return not tensor.is_complex()
    integers_as_they_are = op == ReduceOp.SUM or tensor.is_floating_point()
    return dtype in WORK_DTYPES and integers_as_they_are


def _can_move(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.shape == other.shape and tensor.dtype == other.dtype


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reducing(opts: Any, kind: Any) -> Any:
    """Options of a reduction: none, an operation alone, or all of them."""
    if opts is not None and hasattr(opts, "reduceOp"):
        return opts
    options = kind()
    if opts is not None:
        options.reduceOp = opts
    return options
