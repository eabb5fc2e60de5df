# SPDX-License-Identifier: Apache-2.0
"""FSDP (version 1): over the backend p4reduce, or with a hook and a process group of another backend.

torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py [hook]
"""

import sys

import torch
import torch.distributed as dist
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic
from torch.distributed.fsdp import FullyShardedDataParallel

from p4reduce import Communicator

by_hook = sys.argv[1:] == ["hook"]
dist.init_process_group("gloo" if by_hook else "p4reduce")
rank = dist.get_rank()
model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"), use_orig_params=True)
if by_hook:
    communicator = Communicator(job="fsdp")

    def reduce_scatter(communicator: Communicator, gradient: torch.Tensor, shard: torch.Tensor) -> None:
        communicator.reduce_scatter(gradient.view(communicator.world_size, -1), "average", out=shard)

    model.register_comm_hook(communicator, reduce_scatter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(STEPS):
    loss = loss_of(model, batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print_loss(rank, step, loss)
print_traffic(rank, communicator if by_hook else dist.group.WORLD)
if by_hook:
    communicator.close()
dist.destroy_process_group()
