# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with shards within a host as usual. Its all-reduce hook has the switch sum the shards between hosts.

    torchrun --nnodes 2 --nproc-per-node 4 ... examples/train_fsdp2_hook.py

An argument sets the number of ranks that count as one host; without it, those that torchrun started on a host.
"""

import os
import sys

import torch
import torch.distributed as dist
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from p4reduce import Communicator

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, ranks = dist.get_rank(), dist.get_world_size()
local = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["LOCAL_WORLD_SIZE"])
mesh = init_device_mesh("cpu", (ranks // local, local), mesh_dim_names=("hosts", "host"))
# Ranks with the same local rank have the same shard, and form one job.
communicator = Communicator(job=f"fsdp2/{rank % local}", rank=rank // local, world_size=ranks // local)
model = Model()
for module in (model.words, model.out, model):
    fully_shard(module, mesh=mesh["host"])
    module.set_all_reduce_hook(lambda shard: communicator.allreduce(shard, "average"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(STEPS):
    loss = loss_of(model, batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print_loss(rank, step, loss)
print_traffic(rank, communicator)
communicator.close()
dist.destroy_process_group()
