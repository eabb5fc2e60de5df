# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: collectives of CUDA tensors on the backend, compared with Gloo's on the host.

Prints a JSON object for each check that passed. All ranks share one device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from .saying import Checks
from .tensor_memory import HAS_ALL_TO_ALL, behind_an_offset, column, gaps_are_whole, transposed

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)
CHECKS = Checks()
Make = Callable[[int], torch.Tensor]


LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (torch.clone, transposed, column, behind_an_offset)


def collectives(group: Any, made: Make) -> dict[str, list[torch.Tensor]]:
    """Returns this rank's tensors after each collective. made: a tensor for each number."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [made(rank) for _ in range(6)]
    dist.all_reduce(mine[0], group=group)
    dist.all_reduce(mine[1], dist.ReduceOp.MAX, group=group)
    dist.all_reduce(mine[2], dist.ReduceOp.PRODUCT, group=group)
    dist.broadcast(mine[3], 1, group=group)
    dist.reduce(mine[4], 0, group=group)
    with dist._coalescing_manager(group=group):
        dist.all_reduce(mine[5], group=group)
    parts = [made(10 * rank + number) for number in range(size)]
    gathered, exchanged, at_root = ([made(9) for _ in range(size)] for _ in range(3))
    dist.all_gather(gathered, made(rank), group=group)
    if HAS_ALL_TO_ALL:
        dist.all_to_all(exchanged, parts, group=group)
    dist.gather(made(rank), None if rank else at_root, 0, group=group)
    scattered, summed, received = made(9), made(9), made(9)
    dist.scatter(scattered, None if rank else parts, 0, group=group)
    dist.reduce_scatter(summed, parts, group=group)
    whole = torch.cat(parts)
    joined, part = torch.cat(gathered).clone(), parts[0].clone(memory_format=torch.contiguous_format)
    dist.all_gather_into_tensor(joined, made(rank).contiguous(), group=group)
    dist.reduce_scatter_tensor(part, whole, group=group)
    swapped = torch.zeros_like(whole)
    dist.all_to_all_single(swapped, whole, group=group)
    if rank:
        dist.recv(received, 0, group=group)
        dist.send(made(rank), 0, group=group)
    else:
        dist.send(made(rank), 1, group=group)
        dist.recv(received, group=group)
    return {
        "all_reduce, broadcast, coalesced": [*mine[:4], mine[5]],
        "reduce": [] if rank else [mine[4]],
        "lists": [*gathered, *exchanged, *at_root, scattered, summed],
        "tensors": [joined, part, swapped],
        "received": [received],
    }


@CHECKS.add
def every_collective(gloo: Any) -> None:
    for dtype in DTYPES:

        def whole(number: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return (torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(number)) / 2).to(dtype)

        expected = collectives(gloo, whole)
        for place, layout in enumerate(LAYOUTS):

            def laid(number: int, layout: Callable[[torch.Tensor], torch.Tensor] = layout) -> torch.Tensor:
                return layout(whole(number).cuda())

            for name, tensors in collectives(None, laid).items():
                for ours, theirs in zip(tensors, expected[name], strict=True):
                    gaps_are_whole(ours)
                    assert torch.allclose(ours.cpu().double(), theirs.double()), (name, dtype, place, ours, theirs)


@CHECKS.add
def streams(_: Any) -> None:
    """A tensor that a stream still computes is reduced, and the stream that waits for a work sees its result."""
    ranks = dist.get_world_size()
    for dtype in (torch.float32, torch.float64):
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.zeros(1_000_000, device="cuda", dtype=dtype)
            torch.cuda._sleep(100_000_000)
            tensor += 1
            dist.all_reduce(tensor, async_op=True).wait()
            doubled = tensor * 2
            torch.cuda._sleep(100_000_000)
            doubled += 1
            tripled = dist.all_reduce(doubled, async_op=True).get_future().then(lambda done: done.value()[0] * 3).wait()
            assert bool((tripled == 3 * (2 * ranks + 1) * ranks).all()), dtype
    many = [torch.full((3, 5), float(each), device="cuda").t() for each in range(64)]
    for each, result in enumerate([functional.all_reduce(tensor, "sum", dist.group.WORLD) for tensor in many]):
        assert bool((result == each * ranks).all()), each


@CHECKS.add
def graphs(_: Any) -> None:
    """A refused capture leaves the group usable."""
    tensor = torch.ones(1000, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(tensor)
    except Exception as error:
        if "cannot be captured into a CUDA graph" not in str(error):
            raise
    else:
        raise AssertionError("was captured")
    dist.all_reduce(tensor)
    assert float(tensor[0]) == dist.get_world_size()


@CHECKS.add
def memory(_: Any) -> None:
    """Without Python's collector, no memory of the device stays after calls."""

    def use() -> int:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            tensor = torch.ones(100_000, device="cuda", dtype=dtype)
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0)
            dist.all_gather([torch.empty_like(tensor) for _ in range(dist.get_world_size())], tensor)
        dist.all_reduce(torch.eye(300, device="cuda").to_sparse())
        dist.barrier()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    gc.collect()
    gc.disable()
    before = max(use() for _ in range(5))
    after = min(use() for _ in range(20))
    gc.enable()
    assert after <= before, (before, after)


@CHECKS.add
def training(gloo: Any) -> None:
    def train(group: Any, device: str, sparse: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.EmbeddingBag(1000, 32, sparse=sparse),
            torch.nn.Linear(32, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 8),
        ).to(device)
        network = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        for _ in range(4):
            optimizer.zero_grad()
            network(torch.randint(0, 1000, (16, 5), generator=generator).to(device)).pow(2).mean().backward()
            optimizer.step()
        return {name: value.cpu() for name, value in model.state_dict().items()}

    expected = train(gloo, "cpu", False)
    for sparse in (False, True):
        torch.testing.assert_close(train(None, "cuda", sparse), expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("p4reduce", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    CHECKS.run(gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
