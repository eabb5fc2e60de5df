# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: every collective of torch.distributed on the backend, held against what it must give.

Prints a JSON object for each check that passed.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from p4reduce.protocol.numbers import reference_allreduce

from . import arguments_of_methods, tensor_memory
from .every_collective import MOVED
from .saying import Checks

CHECKS = Checks()


def inputs(size: int, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return a random tensor for each rank, the same on every rank."""
    return [torch.randn(*shape, generator=torch.Generator().manual_seed(rank + 1)).to(dtype) for rank in range(size)]


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected), (result, expected)


@CHECKS.add
def all_reduce_has_the_bits_of_the_reference(rank: int, size: int) -> None:
    for op, name in ((dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "avg")):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            tensors = inputs(size, 300, dtype=dtype)
            wire: Any = "int32" if dtype == torch.float32 else "int16"
            expected = reference_allreduce([tensor.float().numpy() for tensor in tensors], name, wire=wire)
            dist.all_reduce(tensors[rank], op)
            same(tensors[rank], torch.from_numpy(expected).to(dtype))


@CHECKS.add
def premultiplied_sum(_: int, size: int) -> None:
    tensor = torch.full((10,), 3.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, torch.full((10,), 1.5 * size))


@CHECKS.add
def premultiplied_sum_by_gloo(rank: int, size: int) -> None:
    """Scale each tensor by itself, and leave inputs unchanged, and tensors whose reduction Gloo refuses."""
    half, total = dist._make_nccl_premul_sum(0.5), torch.full((4,), 0.5 * size, dtype=torch.float64)
    tensors = [torch.ones(4, dtype=torch.float64) for _ in range(3)]
    dist.all_reduce_coalesced(tensors, half)
    for tensor in tensors:
        same(tensor, total)
    with dist._coalescing_manager():
        for tensor in (mixed := [torch.ones(4, dtype=kind) for kind in (torch.float64, torch.float32)]):
            dist.all_reduce(tensor, half)
    for tensor in mixed:
        same(tensor.double(), total)
    ones = torch.ones(4 * size, dtype=torch.float64)
    given, part = ones.clone(), torch.empty(4, dtype=torch.float64)
    dist.reduce_scatter_tensor(part, given, half)
    same(part, total)
    same(given, ones)
    parts = list(ones.clone().view(size, 4))
    dist.reduce_scatter(part, parts, half)
    same(part, total)
    same(torch.cat(parts), ones)
    reduced = torch.ones(4, dtype=torch.float64)
    dist.reduce(reduced, 0, half)
    same(reduced, torch.ones_like(total) if rank else total)
    refused = torch.full((4,), 8.0, dtype=torch.float64).to(torch.float8_e5m2fnuz)
    for _ in range(2):
        try:
            dist.all_reduce(refused, half)
        except (RuntimeError, NotImplementedError):
            pass
        else:
            raise AssertionError("Gloo takes it")
        assert refused.double().eq(8).all()


@CHECKS.add
def sparse_all_reduce(rank: int, size: int) -> None:
    tensor = torch.sparse_coo_tensor([[1, 3 + rank]], torch.ones(2, 64), (1000, 64), check_invariants=True)
    dist.all_reduce(tensor)
    assert tensor.is_coalesced()
    assert tensor.indices().tolist() == [[1, *range(3, 3 + size)]]
    same(tensor.values()[0], torch.full((64,), float(size)))
    double = torch.eye(3, dtype=torch.float64).to_sparse()  # by Gloo
    dist.all_reduce(double)
    same(double.to_dense(), torch.eye(3, dtype=torch.float64) * size)


@CHECKS.add
def objects(rank: int, size: int) -> None:
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * rank})
    assert everyone == [{"rank": each, "text": "x" * each} for each in range(size)]
    told = [rank, "from", rank]
    dist.broadcast_object_list(told, 1)
    assert told == [1, "from", 1]


@CHECKS.add
def work_handles_and_futures(_: int, size: int) -> None:
    tensors = [torch.ones(1000) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
    for tensor, work, future in zip(tensors, works, futures, strict=True):
        assert work.wait(timedelta(seconds=20))
        same(future.wait(), torch.full((1000,), 2.0 * size))
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor
    for work in (
        dist.barrier(async_op=True),
        dist.broadcast(tensors[0], 0, async_op=True),
        dist.all_gather([torch.empty(1000)] * size, tensors[0], async_op=True),
    ):
        work.wait()


@CHECKS.add
def groups_have_jobs_of_their_own(rank: int, size: int) -> None:
    alone = [dist.new_group([each]) for each in range(size)][rank]
    both = dist.new_group(list(range(size)), timeout=timedelta(seconds=30))
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=alone)
    same(tensor, torch.ones(5))
    # Collectives run on two groups at once, in different orders.
    groups = [both, dist.group.WORLD]
    tensors = [torch.ones(5), torch.ones(5)]
    works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in ([0, 1] if rank else [1, 0])]
    for work in works:
        work.wait()
    same(torch.cat(tensors), torch.full((10,), float(size)))
    names = {group.communicator()._options.job for group in (alone, *groups)}
    assert len(names) == 3
    dist.destroy_process_group(both)
    dist.destroy_process_group(alone)


@CHECKS.add
def functional_collectives(rank: int, size: int) -> None:
    same(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 0, torch.full((4,), float(size)))
    gathered = functional.all_gather_tensor(torch.full((2,), rank), 0, dist.group.WORLD) + 0
    same(gathered, torch.arange(size).repeat_interleave(2))
    scattered = functional.reduce_scatter_tensor(torch.ones(size * 2), "avg", 0, dist.group.WORLD) + 0
    same(scattered, torch.ones(2))


@CHECKS.add
def coalesced_by_gloo_each_tensor_by_itself(rank: int, size: int) -> None:
    """Check that tensors of a list are not summed with each other, as Gloo would do."""
    total = size * (size + 1) // 2

    def given() -> list[torch.Tensor]:
        kinds = (torch.int64, torch.float32, torch.float64, torch.int64)
        return [torch.full((3,), (rank + 1) * 10**power).to(kind) for power, kind in enumerate(kinds)]

    def right(tensors: list[torch.Tensor]) -> None:
        assert [tensor.tolist() for tensor in tensors] == [[total * 10**power] * 3 for power in range(4)]

    same_dtype = [torch.full((3,), (rank + 1) * 10**power) for power in range(4)]
    dist.all_reduce_coalesced(same_dtype)
    right(same_dtype)
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in (tensors := given()):
            dist.all_reduce(tensor)
    works.wait()
    right(tensors)
    right([each + 0 for each in functional.all_reduce_coalesced(given(), "sum", dist.group.WORLD)])
    tensors = [tensor.double() for tensor in given()]
    work = dist.group.WORLD.allreduce_coalesced(tensors)
    assert all(got is tensor for got, tensor in zip(work.get_future().wait(), tensors, strict=True))
    right(tensors)
    assert work.wait()
    assert work.is_completed()
    parts = [torch.empty(1, dtype=torch.int64), torch.empty(2, dtype=torch.float64), torch.empty(1)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.arange(size * part.numel(), dtype=part.dtype))
    expected = [[size * rank], [size * 2 * rank, size * (2 * rank + 1)], [size * rank]]
    assert [part.tolist() for part in parts] == expected


@CHECKS.add
def all_gather_of_different_shapes(rank: int, size: int) -> None:
    for dtype in MOVED:
        shapes = [(each,) * (each + 1) for each in range(size)]  # rank 0's is empty
        outs = [torch.ones(shape, dtype=dtype).t() if len(shape) == 2 else torch.ones(shape) for shape in shapes]
        outs = [out.to(dtype) for out in outs]
        dist.all_gather(outs, torch.full(shapes[rank], rank + 1).to(dtype))
        for each, out in enumerate(outs):
            same(out, torch.full(shapes[each], each + 1).to(dtype))


@CHECKS.add
def what_follows_may_wait_for_other_collectives(_: int, size: int) -> None:
    def follow(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (tensor,) = future.value()
        dist.all_reduce(tensor)
        deeper = dist.all_reduce(tensor, async_op=True).get_future().then(again)
        return torch.as_tensor(deeper.wait())

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (tensor,) = dist.all_reduce(future.value()[0], async_op=True).get_future().wait()
        return torch.as_tensor(tensor)

    future = dist.all_reduce(torch.ones(100), async_op=True).get_future().then(follow)
    same(future.wait(), torch.full((100,), float(size**4)))


@CHECKS.add
def its_name_and_its_numbers(_: int, __: int) -> None:
    group = dist.group.WORLD
    assert group.name() == dist.get_backend() == "p4reduce"
    group.monitored_barrier(timedelta(seconds=20))
    for begin in (
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.int64)),  # by Gloo
        lambda: dist.broadcast(torch.ones(3), 0),
        lambda: dist.barrier(),
    ):
        before = group._get_sequence_number_for_group()
        begin()
        assert group._get_sequence_number_for_group() == before + 1


@CHECKS.add
def profiles(_: int, size: int) -> None:
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_gather([torch.empty(1)] * size, torch.ones(1), async_op=True).wait()
        torch.distributed.barrier(async_op=True).get_future().wait()
    names = {event.name for event in profile.events()}
    assert {"p4reduce:all_reduce", "p4reduce:all_gather", "p4reduce:barrier"} <= names, names
    assert {"p4reduce:all_reduce wait", "p4reduce:all_gather wait"} <= names, names
    for _ in range(10):  # one that is stopped is in nobody's way
        with torch.profiler.profile():
            for _ in range(5):
                dist.all_reduce(torch.ones(3))


@CHECKS.add
def traffic_of_switch_and_gloo(rank: int, size: int) -> None:
    """Count each call once, with its bytes, for the switch or Gloo, whichever carried it."""
    group = dist.new_group(list(range(size)))
    for _ in range(3):
        dist.all_reduce(torch.ones(1000), group=group)
    dist.all_reduce(torch.ones(7, dtype=torch.float64), group=group)
    dist.barrier(group=group)
    given = torch.ones(5)
    if rank == 0:
        dist.send(given, dst=1, group=group)
    if rank == 1:
        dist.recv(given, src=0, group=group)
    dist.all_to_all_single(torch.empty(size), torch.ones(size), group=group)
    dist.gather(torch.ones(2), [torch.empty(2) for _ in range(size)] if rank == 0 else None, dst=0, group=group)
    traffic = group.traffic()
    assert {what: (one.calls, one.bytes) for what, one in traffic.switch.items()} == {
        "all_reduce of float32": (3, 12_000),
        "barrier": (1, 0),
    }
    counted = {what: (one.calls, one.bytes) for what, one in traffic.gloo.items()}
    between = {"send of float32": (1, 20)} if rank == 0 else {"recv of float32": (1, 20)}
    assert counted == {
        "all_reduce of float64": (1, 56),
        "all_to_all of float32": (1, 4 * size),
        "gather of float32": (1, 8),
        **between,
    }
    assert "switch: 4 calls of 0.012 MB" in str(traffic)
    assert "all_reduce of float64: 1 calls of 0.000 MB" in str(traffic)
    dist.destroy_process_group(group)


@CHECKS.add
def many_groups(_: int, size: int) -> None:
    """Reduce in many groups, which take few slots until they have much to reduce."""
    groups = [dist.new_group(list(range(size))) for _ in range(20)]
    for group in groups:
        dist.all_reduce(tensor := torch.ones(10), group=group)
        same(tensor, torch.full((10,), float(size)))
    assert {group.communicator()._running.membership.slots for group in groups} == {4}
    follows = [dist.all_reduce(torch.ones(10), group=groups[0], async_op=True) for _ in range(5)]
    dist.all_reduce(tensor := torch.ones(100_000), group=groups[0])
    same(tensor, torch.full((100_000,), float(size)))
    assert all(work.wait() for work in follows)
    assert groups[0].communicator()._running.membership.slots > 4
    for group in groups:
        dist.destroy_process_group(group)


@CHECKS.add
def whatever_tensors_lie_in_memory_as(_: int, __: int) -> None:
    for function in tensor_memory.CHECKS:
        function(dist.group.WORLD)


@CHECKS.add
def arguments_of_its_own_methods(_: int, __: int) -> None:
    for function in arguments_of_methods.CHECKS:
        function(dist.group.WORLD)


def main() -> None:
    """Run all checks. They need nothing but the backend's name, because torch imports the backend."""
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (dist.get_backend(), size) == ("p4reduce", int(os.environ["WORLD_SIZE"]))
    CHECKS.run(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
