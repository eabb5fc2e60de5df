# SPDX-License-Identifier: Apache-2.0
"""Under torchrun: groups that come when other jobs have all slots of the switch, on all ranks alike.

Prints a JSON object: how many warnings this rank has seen.
"""

from __future__ import annotations

import contextlib
import warnings

import torch
import torch.distributed as dist

from p4reduce import Communicator, SlotsExhausted
from p4reduce.distributed import Options

from . import tensor_memory
from .saying import say


def check(group: dist.ProcessGroup, rank: int, size: int) -> None:
    """Check that a group has every collective, whether it has slots at a switch or none."""
    total = size * (size + 1) / 2
    for op, expected in ((dist.ReduceOp.AVG, total / size), (dist._make_nccl_premul_sum(0.5), total / 2)):
        tensor = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(tensor, op, group=group)
        assert tensor.eq(expected).all()
        part = torch.empty(1)
        dist.reduce_scatter_tensor(part, torch.full((size,), rank + 1.0), op, group=group)
        assert part.tolist() == [expected]
        dist.reduce_scatter(part, list(torch.full((size, 1), rank + 1.0)), op, group=group)
        assert part.tolist() == [expected]
    sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse, group=group)
    assert torch.equal(sparse.to_dense(), size * torch.eye(3))
    for dtype in (torch.float32, torch.int16):  # Gloo does not know the second
        uneven = [torch.empty(each + 1).to(dtype) for each in range(size)]
        dist.all_gather(uneven, torch.full((rank + 1,), rank).to(dtype), group=group)
        assert [out.tolist() for out in uneven] == [[each] * (each + 1) for each in range(size)]
    dist.barrier(group)
    for function in tensor_memory.CHECKS:
        function(group)


def main() -> None:
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = list(range(size))
    small = dist.new_group(everyone)
    dist.all_reduce(torch.ones(3), group=small)
    hogs = []
    for slots in (256, 128, 64, 32, 16, 8, 4, 2, 1):  # until all are taken
        with contextlib.suppress(SlotsExhausted):
            hogs.append(Communicator(job=f"hog {slots}", slots=slots))
        dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(small, rank, size)  # which keeps the slots that it has
        assert small.communicator()._running.membership.slots == 4
        for group in (dist.new_group(everyone), dist.new_group(everyone, pg_options=Options(slots=7))):
            check(group, rank, size)
    without = [warning for warning in caught if "uses Gloo, without a switch" in str(warning.message)]
    say({"rank": rank, "warnings": len(without)})
    dist.barrier()
    for hog in hogs:
        hog.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
