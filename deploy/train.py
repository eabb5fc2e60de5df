# SPDX-License-Identifier: Apache-2.0
"""A small training whose gradients the switch adds up.

Started once a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them. JOB names the p4reduce
job: the same at all its ranks, and no other job's.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook

dist.init_process_group("gloo")
with Communicator(job=os.environ.get("JOB", "first-training")) as communicator:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 2))  # to learn which words are odd
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(AllreduceState(communicator), allreduce_hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(communicator.rank)
    for step in range(int(os.environ.get("STEPS", "20"))):
        words = torch.randint(0, 1000, (256,), generator=generator)
        loss = torch.nn.functional.cross_entropy(ddp(words), words % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if communicator.rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    if communicator.rank == 0:
        print(f"{communicator}: {communicator.stats().packets_sent} packets sent", flush=True)
dist.destroy_process_group()
