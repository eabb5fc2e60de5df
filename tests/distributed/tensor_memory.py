# SPDX-License-Identifier: Apache-2.0
"""Checks of collectives whose tensors lie in memory in other ways than one after the other, row by row.

Each takes the group, and is called by all of its ranks. What a collective must give follows from its definition: the
elements of a tensor, whatever its strides, and all inputs of a call before any of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions

from . import every_collective
from .every_collective import HAS_ALL_TO_ALL, column, gaps_are_whole
from .saying import Checks

Group = Any
CHECKS = Checks()

DTYPES = (torch.float32, torch.int32, torch.float64, torch.int64)  # the first two by the switch, the others by Gloo


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(result, expected.to(result.dtype)), (result, expected)


@CHECKS.add
def every_collective_of_every_layout(group: Group) -> None:
    every_collective.check(group)
    tensor = column(torch.full((4,), 2.0, dtype=torch.float64))
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), group=group)
    same(tensor, torch.full((4,), float(group.size())))
    gaps_are_whole(tensor)


@CHECKS.add
def expanded_tensors_are_read_and_not_written(group: Group) -> None:
    """Read expanded tensors, and refuse to write results to them, because one element in memory stands for four."""
    rank, size = group.rank(), group.size()
    for dtype in DTYPES:
        expanded = torch.full((1,), rank + 1, dtype=dtype).expand(4)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
            with pytest.raises(ValueError, match="expanded"):
                dist.all_reduce(expanded, op, group=group)
        outs = [torch.zeros(4, dtype=dtype) for _ in range(size)]
        dist.all_gather(outs, expanded, group=group)
        assert [out.tolist() for out in outs] == [[each + 1] * 4 for each in range(size)]
        if HAS_ALL_TO_ALL:
            outs = [torch.zeros(4, dtype=dtype) for _ in range(size)]
            dist.all_to_all(outs, [expanded] * size, group=group)
            assert [out.tolist() for out in outs] == [[each + 1] * 4 for each in range(size)]
        dist.barrier(group)


@CHECKS.add
def coalesced_tensors_that_share_memory(group: Group) -> None:
    rank, size = group.rank(), group.size()
    total = size * (size + 1) // 2

    def coalesce(tensors: list[torch.Tensor]) -> None:
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)

    for dtype in DTYPES:
        for begin in (lambda tensors: dist.all_reduce_coalesced(tensors, group=group), coalesce):
            tensor, other = torch.full((4,), rank + 1, dtype=dtype), torch.full((2,), rank + 1, dtype=dtype)
            begin([tensor, other, tensor])
            same(tensor, torch.full((4,), total))
            same(other, torch.full((2,), total))
            tensor = torch.full((5,), rank + 1, dtype=dtype)
            begin([tensor[:3], tensor[1:4], tensor[2:], tensor[1:2]])
            same(tensor, torch.full((5,), total))
            tensor = torch.full((4, 2), rank + 1, dtype=dtype)
            begin([tensor[:, 0], tensor[:, 1]])
            same(tensor, torch.full((4, 2), total))
        tensor = torch.full((3,), rank + 1, dtype=dtype)
        work = group.allreduce_coalesced([tensor, tensor])
        (first, _) = work.get_future().wait()
        assert first is tensor
        same(tensor, torch.full((3,), total))
        # Each call reads memory that another one writes.
        tensor = torch.arange(4 * size).to(dtype) + rank
        with dist._coalescing_manager(group):
            dist.all_gather_into_tensor(tensor[: 2 * size], tensor[2 * size : 2 * size + 2], group=group)
            dist.all_gather_into_tensor(tensor[2 * size :], tensor[:2], group=group)
        starts = torch.arange(size).repeat_interleave(2) + torch.tensor([0, 1]).repeat(size)
        same(tensor, torch.cat([starts + 2 * size, starts]))
        tensor = torch.arange(4 * size).to(dtype) + rank
        given = [torch.arange(4 * size) + each for each in range(size)]
        with dist._coalescing_manager(group):
            dist.reduce_scatter_tensor(tensor[:2], tensor[2 * size :], group=group)
            dist.reduce_scatter_tensor(tensor[2 * size : 2 * size + 2], tensor[: 2 * size], group=group)
        sums, expected = sum(given), given[rank].clone()
        expected[:2] = sums[2 * size :][2 * rank : 2 * rank + 2]
        expected[2 * size : 2 * size + 2] = sums[2 * rank : 2 * rank + 2]
        same(tensor, expected)


@CHECKS.add
def lists_that_share_memory(group: Group) -> None:
    """Reduce and gather where outputs of one call, which is not coalesced, overlap each other or its inputs."""
    rank, size = group.rank(), group.size()
    for dtype in DTYPES:
        given = [torch.arange(2 * size) + 10 * each for each in range(size)]
        tensor = given[rank].to(dtype, copy=True)
        dist.all_gather(list(tensor.chunk(size)), tensor[1:3], group=group)
        same(tensor, torch.cat([each[1:3] for each in given]))
        tensor = torch.zeros(2, dtype=dtype)
        dist.all_gather([tensor] * size, torch.full((2,), rank, dtype=dtype), group=group)
        same(tensor, torch.full((2,), size - 1))
        tensor = given[rank].to(dtype, copy=True)
        dist.reduce_scatter(tensor[1:3], list(tensor.chunk(size)), group=group)
        expected = given[rank].clone()
        expected[1:3] = sum(given)[2 * rank : 2 * rank + 2]
        same(tensor, expected)
        for _ in range(5):
            tensor = given[rank].to(dtype, copy=True)
            dist.all_to_all_single(tensor, tensor, group=group)
            same(tensor, torch.cat([each[2 * rank : 2 * rank + 2] for each in given]))
        if HAS_ALL_TO_ALL:
            tensor = given[rank].to(dtype, copy=True)
            dist.all_to_all(list(tensor.chunk(size)), list(tensor.chunk(size))[::-1], group=group)
            offset = 2 * (size - 1 - rank)
            same(tensor, torch.cat([each[offset : offset + 2] for each in given]))
        tensor = given[rank].to(dtype, copy=True)
        dist.scatter(tensor[1:3], list(tensor.chunk(size)) if rank == 0 else None, group=group)
        expected = given[rank].clone()
        expected[1:3] = given[0][2 * rank : 2 * rank + 2]
        same(tensor, expected)
        tensor = given[rank].to(dtype, copy=True)
        dist.gather(tensor[1:3], list(tensor.chunk(size)) if rank == 0 else None, group=group)
        same(tensor, torch.cat([each[1:3] for each in given]) if rank == 0 else given[rank])


@CHECKS.add
def several_tensors_of_one_call(group: Group) -> None:
    """Reduce several tensors of one call, which are summed with each other, too, and broadcast from `rootTensor`."""
    rank, size = group.rank(), group.size()
    total = size * (size + 1) // 2
    for dtype in DTYPES:
        tensors = [torch.full((2,), (rank + 1) * scale, dtype=dtype) for scale in (1, 10)]
        group.allreduce(tensors).wait()
        assert [each.tolist() for each in tensors] == [[11 * total] * 2] * 2
        alias = torch.full((2,), rank + 1, dtype=dtype)
        group.allreduce([alias, alias]).wait()
        same(alias, torch.full((2,), 2 * total))
        tensors = [column(torch.full((2,), rank + scale, dtype=dtype)) for scale in (1, 10)]
        opts = BroadcastOptions()
        opts.rootRank, opts.rootTensor = 1, 1
        group.broadcast(tensors, opts).wait()
        assert [each.tolist() for each in tensors] == [[11, 11]] * 2
        outs = [[torch.zeros(1, dtype=dtype) for _ in range(2 * size)] for _ in range(2)]
        group.allgather(outs, [torch.full((1,), rank + scale, dtype=dtype) for scale in (1, 10)]).wait()
        assert [[each.item() for each in out] for out in outs] == [
            [each + scale for each in range(size) for scale in (1, 10)]
        ] * 2


@CHECKS.add
def shapes_are_not_compared(group: Group) -> None:
    """Reduce tensors of different shapes, whose elements are matched one by one in row-major order."""
    rank, size = group.rank(), group.size()
    for dtype in DTYPES:
        tensor = torch.arange(6, dtype=dtype).view((2, 3) if rank % 2 else (3, 2))
        dist.all_reduce(tensor, group=group)
        same(tensor.flatten(), torch.arange(6) * size)
        scalar = torch.ones((1,) if rank % 2 else (), dtype=dtype)
        dist.all_reduce(scalar, group=group)
        assert scalar.item() == size


@CHECKS.add
def parts_of_any_shape(group: Group) -> None:
    """Accept parts of any shape: only the number of elements must fit."""
    rank, size = group.rank(), group.size()
    for dtype in DTYPES:
        for shape in ((), (3,), (2, 3), (0, 2)):
            for whole in ((size, *shape), (size * torch.Size(shape).numel(),)):
                part, into = torch.full(shape, rank + 1, dtype=dtype), torch.zeros(whole, dtype=dtype)
                dist.all_gather_into_tensor(into, part, group=group)
                gathered = torch.stack([torch.full(shape, each + 1) for each in range(size)])
                same(into, gathered.view(whole))
                dist.reduce_scatter_tensor(part, into, group=group)
                same(part, torch.full(shape, (rank + 1) * size))


@CHECKS.add
def outputs_have_no_graph(group: Group) -> None:
    """Give outputs no gradient if inputs require one, whether the switch or Gloo carries the call."""
    size = group.size()
    for dtype in (torch.float32, torch.float64):
        whole, out = torch.ones(2 * size, dtype=dtype, requires_grad=True), torch.ones(2, dtype=dtype)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
            dist.reduce_scatter_tensor(out, whole, op, group=group)
            dist.reduce_scatter(out, list(whole.split(2)), op, group=group)
            assert not out.requires_grad


@CHECKS.add
def storage_can_be_resized_afterwards(group: Group) -> None:
    """Resize a storage after calls, as FSDP does to free a parameter for a while."""
    size = group.size()

    def resize(*tensors: torch.Tensor) -> None:
        for tensor in tensors:
            nbytes = tensor.untyped_storage().nbytes()
            tensor.untyped_storage().resize_(0)
            tensor.untyped_storage().resize_(2 * nbytes)

    for dtype in (*DTYPES, torch.bfloat16, torch.uint8):
        one, many = torch.ones(4, dtype=dtype), torch.ones(size * 4, dtype=dtype)
        for begin in (
            lambda: dist.all_reduce(one, group=group),  # noqa: B023
            lambda: dist.reduce(one, 0, group=group),  # noqa: B023
            lambda: dist.broadcast(one, 0, group=group),  # noqa: B023
            lambda: dist.all_gather_into_tensor(many, one, group=group),  # noqa: B023
            lambda: dist.all_gather(list(many.view(size, 4)), one, group=group),  # noqa: B023
            lambda: dist.reduce_scatter_tensor(one, many, group=group),  # noqa: B023
        ):
            begin()
            resize(one, many)


def versions(begin: Callable[..., object], *tensors: torch.Tensor) -> list[int]:
    """Return by how much a call raises autograd's version counters."""
    before = [tensor._version for tensor in tensors]
    begin(*tensors)
    return [tensor._version - old for tensor, old in zip(tensors, before, strict=True)]


@CHECKS.add
def version_counters_are_gloos(group: Group) -> None:
    """Count versions as Gloo does, and on all ranks alike, so that a backward pass raises on all ranks or on none."""
    rank, size = group.rank(), group.size()
    for dtype in DTYPES:
        for make in (lambda: torch.ones(6, dtype=dtype), lambda: torch.ones(6, 2, dtype=dtype)[:, 0]):  # noqa: B023
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
                assert versions(lambda each: dist.all_reduce(each, op, group=group), make()) == [0]  # noqa: B023
                assert versions(lambda each: dist.reduce(each, 1, op, group=group), make()) == [0]  # noqa: B023
            assert versions(lambda each: dist.broadcast(each, 1, group=group), make()) == [0]
            coalesced = [make(), make()]
            assert versions(lambda *each: dist.all_reduce_coalesced(list(each), group=group), *coalesced) == [1, 1]
            outs = [make() for _ in range(size)]
            assert versions(lambda *each: dist.all_gather(list(each), make(), group=group), *outs) == [1] * size  # noqa: B023
            moved = [torch.ones(6, dtype=dtype), torch.ones(6, dtype=dtype)]
            assert versions(lambda *each: dist.all_to_all_single(*each, group=group), *moved) == [0, 0]
            if HAS_ALL_TO_ALL:
                outs = [make() for _ in range(size)]
                lists = [torch.ones(6, dtype=dtype) for _ in range(size)]
                assert versions(lambda *each: dist.all_to_all(list(each), lists, group=group), *outs) == [1] * size  # noqa: B023
            given = [make() for _ in range(size)] if rank == 0 else None
            assert versions(lambda each: dist.scatter(each, given, group=group), make()) == [0]  # noqa: B023
    weight = torch.full((3,), 2.0, requires_grad=True)
    loss = (weight * weight).sum()
    dist.broadcast(weight.detach(), 0, group=group)
    loss.backward()
    assert weight.grad is not None
    same(weight.grad, torch.full((3,), 4.0))
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):
            tensors = [torch.ones(3, dtype=dtype), torch.ones(3, 2, dtype=dtype)[:, 0]]
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
                same(tensor, torch.full((3,), float(size)))
            dist.all_reduce_coalesced(tensors * 2, group=group)
            same(torch.cat(tensors), torch.full((6,), float(size**2)))
