# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed process group whose collectives go through the switch.

What the switch can do nothing for goes through a Gloo group underneath: send and receive, gather and scatter,
all-to-all, and reductions of dtypes or with operations that it cannot add. `torch.distributed.ProcessGroup` finds that
group by itself for all that is not overridden here.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    ReduceScatterOptions,
)

from p4reduce.collectives.moves import all_gather_apart
from p4reduce.communicator import Communicator
from p4reduce.distributed.options import NAME, Options
from p4reduce.distributed.work import SwitchWork, as_backend_error
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
_JOB = "job"
_LONGEST_TIMEOUT_S = 86400.0  # of the controller


_Base: Any = ProcessGroup  # whose overloads say less than what callers pass


class SwitchGroup(_Base):  # type: ignore[misc]
    """A group of ranks, and its job.

    The default group joins its job at once, so that a wrong address is told where it is given; another group at its
    first collective on the switch, as many of them never have one. Each has a name that no other group or run has.
    """

    def __init__(self, group: Any, options: Options) -> None:
        """`group`: torch.distributed's `_DistributedBackendOptions`."""
        super().__init__(group.group_rank, group.group_size)
        self._rank, self._size = group.group_rank, group.group_size
        self._store = PrefixStore(f"{NAME}/", group.store)
        self._timeout: timedelta = group.timeout
        self._name: str = group.group_id
        self._options = options
        self._lock = threading.Lock()
        self._communicator: Communicator | None = None
        self._gloo: Any = ProcessGroupGloo(
            PrefixStore("gloo/", group.store), self._rank, self._size, timeout=self._timeout
        )
        self._gloo._set_sequence_number_for_group()
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, self._gloo)
        if not group.global_ranks_in_group:
            self.communicator()

    def communicator(self) -> Communicator:
        """The group's own, which joins the job when it is first asked for: on all ranks."""
        with self._lock:
            if self._communicator is None:
                if self._rank == 0:
                    self._store.set(_JOB, f"torch {self._name} {secrets.token_hex(8)}")
                job = self._store.get(_JOB).decode()
                limit = min(self._timeout.total_seconds(), _LONGEST_TIMEOUT_S)
                try:
                    self._communicator = Communicator(
                        job=job, rank=self._rank, world_size=self._size, timeout=limit, **asdict(self._options)
                    )
                except (P4ReduceError, ValueError) as error:
                    raise as_backend_error(error) from error
            return self._communicator

    def shutdown(self) -> None:
        """Leaves the job, together with the other ranks."""
        with self._lock:
            if self._communicator is not None:
                self._communicator.close()

    abort = shutdown

    def set_timeout(self, timeout: timedelta) -> None:
        """For collectives from now on."""
        self._timeout = timeout
        self._gloo.set_timeout(timeout)

    # What the switch does. Names and arguments are torch.distributed's; where it has two names, newer releases use the
    # one that has a definition here.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Of dense or sparse tensors."""
        tensors, opts = _as_list(tensors), _reducing(opts, AllreduceOptions)
        if not all(_can_reduce(tensor, opts.reduceOp) for tensor in tensors):
            return self._gloo.allreduce(tensors, opts)
        how = self._how(opts)
        return self._start(lambda each: [each.allreduce_async(tensor, **how) for tensor in tensors], tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Of several tensors."""
        given = _reducing(opts, AllreduceCoalescedOptions)
        options = AllreduceOptions()
        options.reduceOp, options.timeout = given.reduceOp, given.timeout
        return self.allreduce(tensors, options)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """To rank `opts.rootRank`."""
        (tensor,) = tensors = _as_list(tensors)
        if not _can_reduce(tensor, opts.reduceOp) or tensor.is_sparse:
            return self._gloo.reduce(tensors, opts)
        how = self._how(opts)
        return self._start(lambda each: [each.reduce_async(tensor, opts.rootRank, **how)], tensors)

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """From rank `opts.rootRank`."""
        (tensor,) = tensors = _as_list(tensors)
        if not _can_move(tensor):
            return self._gloo.broadcast(tensors, opts)
        limit = self._limit(opts)
        return self._start(lambda each: [each.broadcast_async(tensor, opts.rootRank, timeout=limit)], tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into a list of tensors."""
        opts = opts or AllgatherOptions()
        (out,), (given,) = (outputs, inputs) if isinstance(inputs, list) else ([outputs], [inputs])
        if not all(_can_move(tensor) and _alike(tensor, given) for tensor in (given, *out)):
            return self._gloo.allgather([out], [given], opts)
        limit = self._limit(opts)
        return self._start(lambda each: [each.start(limit, all_gather_apart, given, out)], out)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Into one tensor of `size()` times as many elements."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Into one tensor for each input."""
        limit = self._limit(opts or AllgatherOptions())
        pairs = [(output.view(self._size, *given.shape), given) for output, given in zip(outputs, inputs, strict=True)]
        return self._start(
            lambda each: [each.all_gather_async(given, out=out, timeout=limit) for out, given in pairs], list(outputs)
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of a list of tensors, one for each rank."""
        opts = _reducing(opts, ReduceScatterOptions)
        (out,), (given,) = (outputs, inputs) if isinstance(outputs, list) else ([outputs], [inputs])
        if not all(_can_reduce(tensor, opts.reduceOp) and _alike(tensor, out) for tensor in (out, *given)):
            return self._gloo.reduce_scatter([out], [given], opts)
        how = self._how(opts)
        return self._start(lambda each: [each.reduce_scatter_async(torch.stack(given), out=out, **how)], [out])

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        """Of one tensor of `size()` times as many elements."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Of one tensor for each output."""
        opts = _reducing(opts, ReduceScatterOptions)
        pairs = list(zip(outputs, inputs, strict=True))
        if not all(_can_reduce(given, opts.reduceOp) for given in inputs):
            if len(pairs) > 1:
                raise NotImplementedError(f"reduce_scatter of several tensors with {opts.reduceOp}: accepted is one")
            return self._gloo._reduce_scatter_base(*pairs[0], opts)
        how = self._how(opts)
        pairs = [(out, given.reshape(self._size, *out.shape)) for out, given in pairs]
        return self._start(
            lambda each: [each.reduce_scatter_async(given, out=out, **how) for out, given in pairs], list(outputs)
        )

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def barrier(self, opts: Any = None) -> Any:
        """Of all ranks."""
        limit = self._limit(opts or BarrierOptions())
        return self._start(lambda each: [each.barrier_async(limit)], [])

    def _start(self, begin: Callable[[Communicator], list[Handle[Any]]], outputs: list[torch.Tensor]) -> SwitchWork:
        """What `begin` has begun, as one work."""
        communicator = self.communicator()
        try:
            return SwitchWork(begin(communicator), outputs)
        except P4ReduceError as error:
            raise as_backend_error(error) from error

    def _limit(self, opts: Any) -> float:
        """Seconds; options hold a negative time where nobody has given one."""
        timeout = opts.timeout if opts.timeout > timedelta(0) else self._timeout
        return float(timeout.total_seconds())

    def _how(self, opts: Any) -> dict[str, Any]:
        """Arguments of a communicator's reductions."""
        op = opts.reduceOp
        factor = float(op.factor) if op == ReduceOp.PREMUL_SUM else 1.0
        return {"op": _op_name(op), "factor": factor, "timeout": self._limit(opts)}


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
