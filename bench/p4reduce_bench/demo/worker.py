# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo, which trains with DDP and compares every sum of the switch with a reference.

`p4reduce demo` starts it with torchrun's variables. It prints one JSON object for each step.
"""

import argparse
import hashlib
import json
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.ddp import AllreduceState, allreduce_hook
from p4reduce.protocol.blocks import ZERO, Blocks
from p4reduce.protocol.numbers import error_bound, reference_allreduce
from p4reduce_bench.demo.model import LanguageModel, corpus

BATCH, LENGTH, SAMPLES, HELD_OUT = 16, 20, 128, 4096


class Checker:
    """A comparison of each bucket that the hook reduced with reference reductions of the same gradients."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.buckets: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.digest = hashlib.sha256()
        self.inexact = 0
        self.worst_gloo_error = 0.0

    def hook(self, state: AllreduceState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Call `allreduce_hook`, and keep its input and the buffer of its result."""
        before = bucket.buffer().clone()
        self.buckets.append((before, bucket.buffer()))
        return allreduce_hook(state, bucket)

    def densities(self) -> tuple[float, float]:
        """Return the shares of this rank's gradient that are not zero: of elements, and of blocks."""
        flat = torch.cat([before for before, _ in self.buckets])
        blocks = Blocks(flat.numpy(), self.block_size).scan()
        return float((flat != 0).float().mean()), float((blocks != ZERO).mean())

    def check(self) -> None:
        """Compare and forget the buckets of this step. All ranks must call it."""
        world_size = dist.get_world_size()
        for before, after in self.buckets:
            inputs = [torch.empty_like(before) for _ in range(world_size)]
            dist.all_gather(inputs, before)
            arrays = [tensor.numpy() for tensor in inputs]
            result = after.numpy()
            self.digest.update(result.tobytes())
            expected = reference_allreduce(arrays, "avg", self.block_size)
            self.inexact += int((expected.view(np.int32) != result.view(np.int32)).sum())
            self._compare_with_gloo(arrays, before, result)
        self.buckets.clear()

    def _compare_with_gloo(
        self, arrays: list[npt.NDArray[Any]], before: torch.Tensor, result: npt.NDArray[np.float32]
    ) -> None:
        """Measure the error against Gloo's float32 sum, as a share of the difference that is allowed."""
        dist.all_reduce(before)
        gloo_sum = before
        world_size = len(arrays)
        exponents = np.max([Blocks(array, self.block_size).scan() for array in arrays], axis=0)
        bound = np.repeat(error_bound(exponents, world_size), self.block_size)[: result.size]
        # Gloo rounds after each of its additions, p4reduce once, and the average once more.
        bound += (world_size + 1) * 2.0**-24 * np.sum(np.abs(arrays), axis=0, dtype=np.float64)
        error = np.abs(result.astype(np.float64) * world_size - gloo_sum.numpy())
        self.worst_gloo_error = max(self.worst_gloo_error, float(np.max(error / np.maximum(bound, 1e-45))))


def next_batch(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a batch of windows of the text: int64, shape (BATCH, LENGTH + 1)."""
    starts = torch.randint(0, text.numel() - LENGTH - 1, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(LENGTH + 1)]


def held_out_loss(model: LanguageModel, text: torch.Tensor) -> float:
    """Return the loss over the whole vocabulary on text that is never trained on."""
    with torch.no_grad():
        windows = text[: text.numel() // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
        return float(model(windows, torch.empty(0, dtype=torch.int64)))


def train(communicator: Communicator, options: argparse.Namespace) -> None:
    """Train and print one JSON object a step, and a last one with the sums' digest."""
    rank = dist.get_rank()
    text = corpus(options.vocabulary)
    torch.manual_seed(options.seed)
    model = LanguageModel(options.vocabulary, options.width)
    parallel = DistributedDataParallel(model, bucket_cap_mb=1)
    checker = Checker(communicator.block_size)
    parallel.register_comm_hook(AllreduceState(communicator), checker.hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    generator = torch.Generator().manual_seed(options.seed * 1000 + rank)
    common = torch.Generator().manual_seed(options.seed)
    for step in range(options.steps + 1):
        evaluate = step % options.evaluate_every == 0 or step == options.steps
        event: dict[str, Any] = {"step": step}
        if evaluate and rank == 0:
            event["held_out_loss"] = held_out_loss(model, text[:HELD_OUT])
        if step < options.steps:
            samples = torch.randint(0, options.vocabulary, (SAMPLES,), generator=common)
            started = time.monotonic()
            loss = parallel(next_batch(text[HELD_OUT:], generator), samples)
            optimizer.zero_grad()
            loss.backward()
            event["seconds"] = time.monotonic() - started
            event["loss"] = float(loss)
            event["element_density"], event["block_density"] = checker.densities()
            checker.check()
            optimizer.step()
        event["stats"] = asdict(communicator.stats())
        event["inexact"] = checker.inexact
        event["worst_gloo_error"] = checker.worst_gloo_error
        print(json.dumps(event), flush=True)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"digest": checker.digest.hexdigest(), "parameters": parameters}), flush=True)


def main() -> None:
    """Parse the options, join, train, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cabled", action="store_true", help="use the interface that `network.star` made")
    parser.add_argument("--slots", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        interface = f"worker{dist.get_rank()}" if options.cabled else None
        with Communicator(job="demo", interface=interface, slots=options.slots, timeout=60) as communicator:
            train(communicator, options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
