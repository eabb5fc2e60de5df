# SPDX-License-Identifier: Apache-2.0
"""Ray Train: with the DDP hook, or over the backend p4reduce.

    python examples/train_ray.py [backend]

The variable RAY_ADDRESS names the cluster. Without it, Ray starts one on this machine.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook


def train(config: dict[str, Any]) -> None:
    rank, ranks = get_context().get_world_rank(), get_context().get_world_size()
    model = prepare_model(Model())
    if config["by_hook"]:
        communicator = Communicator(job=get_context().get_experiment_name(), rank=rank, world_size=ranks)
        model.register_comm_hook(AllreduceState(communicator), allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        loss = loss_of(model, batch(step, rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print_loss(rank, step, loss)
    print_traffic(rank, communicator if config["by_hook"] else dist.group.WORLD)
    if config["by_hook"]:
        communicator.close()


if __name__ == "__main__":
    by_hook = sys.argv[1:] != ["backend"]
    ours = {name: value for name, value in os.environ.items() if name.startswith("P4REDUCE_")}
    trainer = TorchTrainer(
        train,
        train_loop_config={"by_hook": by_hook},
        torch_config=TorchConfig(backend="gloo" if by_hook else "p4reduce"),
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(
            storage_path=os.environ.get("STORAGE", "/tmp/ray_results"),
            worker_runtime_env={"env_vars": ours},  # the controller's address, for all workers
        ),
    )
    trainer.fit()
