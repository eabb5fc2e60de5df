# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning: with the DDP hook as a strategy, or over the backend p4reduce.

torchrun --standalone --nproc-per-node 2 examples/train_lightning.py [backend]
"""

import sys
from collections.abc import Iterator

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from model import STEPS, Model, batch, loss_of, print_loss, print_traffic

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook


class SwitchStrategy(DDPStrategy):
    """DDP with the hook of p4reduce. `DDPStrategy(ddp_comm_hook=)` does the same, but only on GPUs."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.communicator = Communicator(job="lightning", rank=self.global_rank, world_size=self.world_size)
        self.model.register_comm_hook(AllreduceState(self.communicator), allreduce_hook)

    def teardown(self) -> None:
        if hasattr(self, "communicator"):  # it has none if the job could not be joined
            self.communicator.close()
        super().teardown()


class Words(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, words: torch.Tensor, step: int) -> torch.Tensor:
        loss = loss_of(self.model, words)
        print_loss(self.global_rank, step, loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(Batches(self.global_rank), batch_size=None)


class Batches(torch.utils.data.IterableDataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch(step, self.rank) for step in range(STEPS))


by_hook = sys.argv[1:] != ["backend"]
strategy = SwitchStrategy(process_group_backend="gloo")  # "nccl" on GPUs
if not by_hook:
    strategy = DDPStrategy(process_group_backend="p4reduce")
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Words())
print_traffic(trainer.global_rank, strategy.communicator if by_hook else torch.distributed.group.WORLD)
