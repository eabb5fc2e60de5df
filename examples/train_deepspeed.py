# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed over the backend p4reduce. The argument is the ZeRO stage: 1, 2 or 3.

torchrun --standalone --nproc-per-node 2 examples/train_deepspeed.py 2
"""

import sys

import deepspeed
import torch
import torch.distributed as dist
from model import BATCH, STEPS, Model, batch, loss_of, print_loss, print_traffic

stage = int(sys.argv[1])
deepspeed.init_distributed("p4reduce")
rank = dist.get_rank()
model = Model()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    },
)
for step in range(STEPS):
    loss = loss_of(engine, batch(step, rank))
    engine.backward(loss)
    engine.step()
    print_loss(rank, step, loss)
print_traffic(rank, dist.group.WORLD if stage == 3 else engine.data_parallel_group)  # the group that sums gradients
dist.destroy_process_group()
