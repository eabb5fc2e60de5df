# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: collectives of CUDA tensors on the backend, compared with Gloo's on the host.

Prints a JSON object for each check that passed. All ranks share one device.
"""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from . import every_collective
from .every_collective import ADDED, behind_an_offset, column, transposed
from .saying import Checks

CHECKS = Checks()


@CHECKS.add
def every_collective_of_every_layout(_: Any) -> None:
    every_collective.check(None, ADDED, (transposed, column, behind_an_offset), "cuda")


@CHECKS.add
def streams(_: Any) -> None:
    """Reduce a tensor that a stream still computes. A stream that waits for the work sees its result."""
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
    """Call a collective after a refused capture, which leaves the group usable."""
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
    """Check that no memory of the device stays after calls, even if Python's garbage collector does not run."""

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
