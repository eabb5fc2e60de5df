# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a group's own methods: all forms that PyTorch's take, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from .every_collective import HAS_ALL_TO_ALL

Group = Any
LIMIT = timedelta(seconds=50)
KINDS = (torch.float32, torch.float64)  # by the switch, by Gloo


def with_fields(options: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def forms_are_pytorchs(group: Group) -> None:
    rank, size = group.rank(), group.size()
    total = size * (size + 1) // 2
    most = dist.ReduceOp.MAX
    for dtype in KINDS:

        def one(value: float = rank + 1, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.full((2,), value, dtype=dtype)

        def gives(expected: float, begin: Callable[[torch.Tensor], Any]) -> None:
            work = begin(tensor := one())
            assert work.wait()
            assert tensor.tolist() == [expected] * 2, tensor

        gives(total, lambda each: group.allreduce(each))
        gives(total, lambda each: group.allreduce([each]))
        gives(total, lambda each: group.allreduce(tensors=[each]))
        gives(total, lambda each: group.allreduce(tensor=each))
        gives(size, lambda each: group.allreduce(each, most))
        gives(size, lambda each: group.allreduce(each, op=most))
        gives(size, lambda each: group.allreduce(each, most, LIMIT))
        gives(total, lambda each: group.allreduce([each], timeout=LIMIT))
        gives(size, lambda each: group.allreduce([each], opts=with_fields(AllreduceOptions(), reduceOp=most)))
        gives(total, lambda each: group.allreduce_coalesced(tensors=[each]))
        options = with_fields(AllreduceCoalescedOptions(), reduceOp=most)
        gives(size, lambda each: group.allreduce_coalesced([each], opts=options))  # noqa: B023
        gives(2, lambda each: group.broadcast(each, root=1))
        gives(2, lambda each: group.broadcast(each, 1))
        gives(2, lambda each: group.broadcast(tensor=each, root=1, timeout=LIMIT))
        gives(1, lambda each: group.broadcast([each]))
        gives(2, lambda each: group.broadcast(tensors=[each], opts=with_fields(BroadcastOptions(), rootRank=1)))
        gives(total if rank == 0 else rank + 1, lambda each: group.reduce(each, 0))
        gives(total if rank == 1 else rank + 1, lambda each: group.reduce(each, root=1))
        gives(size if rank == 1 else rank + 1, lambda each: group.reduce(each, 1, most, LIMIT))
        gives(size if rank == 1 else rank + 1, lambda each: group.reduce(tensor=each, root=1, op=most))
        options = with_fields(ReduceOptions(), rootRank=1, reduceOp=most)
        gives(size if rank == 1 else rank + 1, lambda each: group.reduce(tensors=[each], opts=options))  # noqa: B023

        def gathers(begin: Callable[[list[torch.Tensor], torch.Tensor], Any]) -> None:
            begin(outs := [one(0) for _ in range(size)], one()).wait()
            assert [out[0].item() for out in outs] == [each + 1 for each in range(size)]

        gathers(lambda outs, given: group.allgather(outs, given))
        gathers(lambda outs, given: group.allgather(outs, given, LIMIT))
        gathers(lambda outs, given: group.allgather([outs], [given]))
        gathers(lambda outs, given: group.allgather(output_tensors=[outs], input_tensors=[given]))
        gathers(lambda outs, given: group.allgather(output_tensors=outs, input_tensor=given, timeout=LIMIT))
        gathers(lambda outs, given: group.allgather([outs], [given], opts=AllgatherOptions()))
        gathers(lambda outs, given: group.allgather_coalesced([[out] for out in outs], [given]))
        if HAS_ALL_TO_ALL:
            gathers(lambda outs, given: group.alltoall(outs, [given] * size))
            gathers(lambda outs, given: group.alltoall(outs, [given] * size, AllToAllOptions()))
        for name in ("_allgather_base", "all_gather_single"):
            getattr(group, name)(output=(out := torch.zeros(2 * size, dtype=dtype)), input=one()).wait()
            assert out[::2].tolist() == [each + 1 for each in range(size)]
        given = [one((rank + 1) * (each + 1)) for each in range(size)]
        gives(total * (rank + 1), lambda each: group.reduce_scatter(each, given))  # noqa: B023
        gives(size * (rank + 1), lambda each: group.reduce_scatter(each, given, most, LIMIT))  # noqa: B023
        gives(size * (rank + 1), lambda each: group.reduce_scatter(output=each, input=given, op=most))  # noqa: B023
        gives(total * (rank + 1), lambda each: group.reduce_scatter([each], [given]))  # noqa: B023
        options = with_fields(ReduceScatterOptions(), reduceOp=most)
        gives(size * (rank + 1), lambda each: group.reduce_scatter([each], [given], opts=options))  # noqa: B023
        flat = torch.cat(given)
        gives(total * (rank + 1), lambda each: group._reduce_scatter_base(each, flat))  # noqa: B023
        gives(size * (rank + 1), lambda each: group.reduce_scatter_single(each, flat, options))  # noqa: B023
        outs = [one(0) for _ in range(size)] if rank == 0 else []
        group.gather([outs] if outs else [], [one()], with_fields(GatherOptions(), rootRank=0)).wait()
        assert [out[0].item() for out in outs] == [each + 1 for each in range(size if outs else 0)]
        options = with_fields(ScatterOptions(), rootRank=0)
        for_all = [[one(each + 5) for each in range(size)]] if rank == 0 else []
        gives(rank + 5, lambda each: group.scatter([each], for_all, options))  # noqa: B023
        exchanged = torch.zeros(size, dtype=dtype)
        group.alltoall_base(exchanged, torch.full((size,), rank, dtype=dtype), [], [], timeout=LIMIT).wait()
        assert exchanged.tolist() == list(range(size))
    if rank == 0:
        group.gather(outs := [torch.zeros(1) for _ in range(size)], torch.ones(1), 0).wait()
        assert torch.cat(outs).tolist() == [1.0] * size
        group.scatter(out := torch.zeros(1), [torch.ones(1)] * size, root=0).wait()
        assert out.item() == 1
    else:
        group.gather([], [torch.ones(1)], with_fields(GatherOptions(), rootRank=0)).wait()
        group.scatter([torch.zeros(1)], [], with_fields(ScatterOptions(), rootRank=0)).wait()
    for arguments in ((), (BarrierOptions(),), (LIMIT,)):
        assert group.barrier(*arguments).wait()
    assert group.barrier(timeout=LIMIT).wait()
    assert group.barrier(opts=BarrierOptions()).wait()


def what_is_wrong_is_refused(group: Group) -> None:
    """Refuse wrong arguments as Gloo does, and before anything is begun, so that the group goes on."""
    size = group.size()
    one, double, longer = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(2)

    def refused(words: str, begin: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        with pytest.raises(RuntimeError, match=words):
            begin(*arguments, **options)

    for begin, kind in ((group.allreduce, AllreduceOptions), (group.allreduce_coalesced, AllreduceCoalescedOptions)):
        refused("requires non-empty tensor list", begin, [], kind())
    refused("invalid tensor type", group.allreduce, [one, double])
    refused("invalid tensor size", group.allreduce, [one, longer])
    for root in (-1, size):
        refused("invalid root rank", group.broadcast, one, root=root)
        refused("invalid root rank", group.broadcast, [double], root)
        refused("invalid root rank", group.reduce, one, root)
        refused("invalid root rank", group.reduce, [double], with_fields(ReduceOptions(), rootRank=root))
    for tensor in (-1, 1):
        refused("invalid root tensor", group.broadcast, [one], with_fields(BroadcastOptions(), rootTensor=tensor))
    refused("invalid root tensor", group.broadcast, [])
    refused("invalid root tensor", group.reduce, [one], with_fields(ReduceOptions(), rootTensor=1))
    refused("requires a single-element tensor list", group.reduce, [one, one], 0)
    refused("invalid tensor type", group.broadcast, [one, double])
    refused("invalid tensor size", group.broadcast, [one, longer])
    refused("requires non-empty input tensor list", group.allgather, [], [])
    refused("same length", group.allgather, [], [one])
    refused("same length", group.allgather, [[one] * size] * 2, [one])
    for count in (size - 1, size + 1):
        refused("invalid output tensor list", group.allgather, [[one] * count], [one])
    refused("invalid tensor type", group.allgather, [[double] * size], [one])
    refused("invalid tensor size", group.allgather, [[longer] * size], [one])
    for given, words in (("MAX", "str"), (7, "int")):
        with pytest.raises(TypeError, match=words):
            group.allreduce(one, given)
    with pytest.raises(TypeError, match="BarrierOptions"):
        group.barrier(7)
    group.barrier().wait()


CHECKS: list[Callable[[Group], None]] = [forms_are_pytorchs, what_is_wrong_is_refused]
