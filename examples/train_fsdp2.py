# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over the backend p4reduce: the switch gathers weights, and reduces and scatters gradients.

torchrun --standalone --nproc-per-node 2 examples/train_fsdp2.py
"""

import torch
import torch.distributed as dist
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("p4reduce")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
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
print_traffic(rank, mesh.get_group())
dist.destroy_process_group()
