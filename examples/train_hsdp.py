# SPDX-License-Identifier: Apache-2.0
"""HSDP over a DeviceMesh: shards within a host as usual. The backend p4reduce sums them between hosts.

    torchrun --nnodes 2 --nproc-per-node 4 ... examples/train_hsdp.py

An argument sets the number of ranks that count as one host; without it, those that torchrun started on a host.
"""

import os
import sys

import torch
import torch.distributed as dist
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, ranks = dist.get_rank(), dist.get_world_size()
local = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["LOCAL_WORLD_SIZE"])
mesh = init_device_mesh(
    "cpu", (ranks // local, local), mesh_dim_names=("replicate", "shard"), backend_override={"replicate": "p4reduce"}
)
model = Model()
for module in (model.words, model.out, model):
    fully_shard(module, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(STEPS):
    loss = loss_of(model, batch(step, rank))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print_loss(rank, step, loss)
print_traffic(rank, mesh.get_group("replicate"))
dist.destroy_process_group()
