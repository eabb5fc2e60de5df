# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: with the DDP hook, or over the backend p4reduce.

torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py [backend]
"""

import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook

by_hook = sys.argv[1:] != ["backend"]
dist.init_process_group("gloo" if by_hook else "p4reduce")  # first, or else the Accelerator creates a group
accelerator = Accelerator(cpu=True)
model = Model()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
if by_hook:
    communicator = Communicator(job="accelerate")
    model.register_comm_hook(AllreduceState(communicator), allreduce_hook)
for step in range(STEPS):
    loss = loss_of(model, batch(step, accelerator.process_index))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    print_loss(accelerator.process_index, step, loss)
print_traffic(accelerator.process_index, communicator if by_hook else dist.group.WORLD)
if by_hook:
    communicator.close()
accelerator.end_training()
