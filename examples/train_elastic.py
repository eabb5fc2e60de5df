# SPDX-License-Identifier: Apache-2.0
"""Elastic training: when a rank dies, torchrun restarts all, and they continue from their last common checkpoint.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/train_elastic.py checkpoints [backend]
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from model import Model, batch, loss_of, print_loss, print_traffic
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.ddp import BlockTopKState, block_topk_hook

STEPS = 20
folder = Path(sys.argv[1])  # shared by all hosts, since a rank may restart on another one
folder.mkdir(parents=True, exist_ok=True)

by_hook = sys.argv[2:] != ["backend"]
dist.init_process_group("gloo" if by_hook else "p4reduce")
rank = dist.get_rank()
ddp = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0.9)
kept = {"model": ddp.module, "optimizer": optimizer}
if by_hook:
    communicator = Communicator(job="elastic")
    state = BlockTopKState(communicator, ddp, ratio=0.2)
    ddp.register_comm_hook(state, block_topk_hook)
    kept["hook"] = state  # a sparsifier's residuals are part of the training


def path(step: int) -> Path:
    return folder / f"{step}-{rank}.pt"


def save(step: int) -> None:
    """Write this rank's checkpoint after `step` steps, atomically. Only the one before it is kept as well."""
    torch.save({name: each.state_dict() for name, each in kept.items()}, path(step).with_suffix(".new"))
    os.replace(path(step).with_suffix(".new"), path(step))
    path(step - 2).unlink(missing_ok=True)


def load() -> int:
    """Load the last step that all ranks have saved, and return its number.

    A rank that died may lack the newest checkpoint of the others.
    """
    mine = max((int(file.stem.split("-")[0]) for file in folder.glob(f"*-{rank}.pt")), default=0)
    last = torch.tensor(mine)
    dist.all_reduce(last, dist.ReduceOp.MIN)
    step = int(last)
    if step:
        for name, saved in torch.load(path(step), weights_only=True).items():
            kept[name].load_state_dict(saved)
    return step


for step in range(load(), STEPS):
    loss = loss_of(ddp, batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print_loss(rank, step, loss)  # before saving: a step that all ranks have saved is not repeated
    save(step + 1)
print_traffic(rank, communicator if by_hook else dist.group.WORLD)
if by_hook:
    communicator.close()
dist.destroy_process_group()
