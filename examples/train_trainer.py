# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: with the DDP hook, or over the backend p4reduce.

torchrun --standalone --nproc-per-node 2 examples/train_trainer.py [backend]
"""

import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from model import BATCH, STEPS, Model, batch, loss_of, print_loss, print_traffic
from transformers import Trainer, TrainerCallback, TrainingArguments

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": loss_of(self.model, words)}


class Hook(TrainerCallback):
    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.communicator = Communicator(job="trainer")
        trainer.model_wrapped.register_comm_hook(AllreduceState(self.communicator), allreduce_hook)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.communicator.close()


class PrintingTrainer(Trainer):
    """A Trainer that prints each rank's losses."""

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> torch.Tensor:
        loss: torch.Tensor = super().compute_loss(model, inputs, *given, **more)
        print_loss(dist.get_rank(), self.state.global_step, loss)
        return loss


by_hook = sys.argv[1:] != ["backend"]
dist.init_process_group("gloo" if by_hook else "p4reduce")  # first, or else TrainingArguments creates a group
rank, ranks = dist.get_rank(), dist.get_world_size()
# The Trainer's sampler deals batches to the ranks in turn: batch b goes to rank b modulo the number of ranks.
data = [{"words": words} for number in range(STEPS * ranks) for words in batch(number // ranks, number % ranks)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, per_device_train_batch_size=BATCH, max_steps=STEPS,
    train_sampling_strategy="sequential", optim="sgd", learning_rate=0.5, lr_scheduler_type="constant", max_grad_norm=0,
    report_to=[], save_strategy="no", disable_tqdm=True,
)  # fmt: skip
hook = Hook()
trainer = PrintingTrainer(model=Classifier(), args=arguments, train_dataset=data, callbacks=[hook] if by_hook else [])
trainer.train()
print_traffic(rank, hook.communicator if by_hook else dist.group.WORLD)
dist.destroy_process_group()
