# SPDX-License-Identifier: Apache-2.0
"""One rank of `p4reduce bench train`: trains each model with each system, the same batches in the same order.

Started by `p4reduce bench train`; prints JSON objects: each step (rank 0 alone), each run, and what went wrong.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator
from p4reduce.backends import backend
from p4reduce.ddp import AllreduceState, BlockTopKState, Recorder, allreduce_hook, block_topk_hook, noop_hook
from p4reduce.ddp.recording import Hook
from p4reduce_bench.allreduce.reducers import Gloo, P4Reduce, Reducer
from p4reduce_bench.training.trainings import HOOKS, RECORDED, Run
from p4reduce_bench.training.workloads import Workload, make


class Ranks:
    """What all runs share: the communicator, where a system needs one, and who counts the traffic."""

    def __init__(self, communicator: Communicator | None, options: argparse.Namespace) -> None:
        self.options = options
        self._communicator = communicator
        self._interface = Gloo(options.counted)
        self.rank = dist.get_rank()

    def counter(self, system: str) -> Reducer:
        """With links the interface counts for all systems alike; without, p4reduce counts its own."""
        own = self._communicator is not None and self.options.counted is None and system.startswith("p4reduce")
        return P4Reduce(self._communicator) if own else self._interface

    def hook(self, system: str, ddp: DistributedDataParallel) -> tuple[Any, Hook | None]:
        """A hook with its state; no hook is DDP's own allreduce."""
        if HOOKS[system] == "allreduce":
            return None, None
        if HOOKS[system] == "noop_hook":
            return None, noop_hook
        assert self._communicator is not None
        if HOOKS[system] == "allreduce_hook":
            return AllreduceState(self._communicator), allreduce_hook
        return BlockTopKState(self._communicator, ddp, ratio=self.options.ratio), block_topk_hook

    def train(self, run: Run, workload: Workload) -> dict[str, Any]:
        """Losses and seconds of each step, what a step sent on average, and the loss on held-out samples in the end."""
        options = self.options
        torch.manual_seed(run.seed)
        model = workload.model()
        ddp = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        optimizer = workload.optimizer(model)
        recording = _Recording(options.folder / run.model, ddp) if run.recorded else None
        state, hook = self.hook(run.system, ddp)
        if hook is not None:
            ddp.register_comm_hook(state, recording.wrap(hook) if recording else hook)
        generator = torch.Generator().manual_seed(1000 * run.seed + self.rank)
        extra = 1 + RECORDED if recording else 0
        batches = [workload.draw(workload.batch, generator) for _ in range(options.steps + extra)]
        counter = self.counter(run.system)
        losses, ends, before = [], [], counter.traffic()
        dist.barrier()
        started = time.perf_counter()
        for step, batch in enumerate(batches[: options.steps]):
            if step == options.warm_up:
                before = counter.traffic()
            loss = ddp(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
            ends.append(time.perf_counter() - started)
            if self.rank == 0:
                report({"step": step, "loss": losses[-1]})
        after = counter.traffic()
        counted = options.steps - options.warm_up
        held_out = None
        if self.rank == 0:
            with torch.no_grad():
                held_out = float(model(*workload.draw_held_out(workload.held_out, torch.Generator().manual_seed(0))))
        dist.barrier()
        if recording:
            recording.active = True
            for batch in batches[options.steps :]:
                ddp(*batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        dist.barrier()
        return {
            "losses": losses,
            "ends": ends,
            "held_out_loss": held_out,
            "traffic": {name: (after[name] - before[name]) / counted for name in after},
            "batch": workload.batch,
            "backend": backend().name,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }


class _Recording:
    """Records gradients when told to, once all that is timed is over."""

    def __init__(self, folder: Path, ddp: DistributedDataParallel) -> None:
        self._recorder = Recorder(folder, ddp, every=1, files=RECORDED)
        self.active = False

    def wrap(self, hook: Hook) -> Hook:
        """`hook`, recorded while active."""
        recorded = self._recorder.wrap(hook)

        def chosen(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            return (recorded if self.active else hook)(state, bucket)

        return chosen


def report(event: dict[str, Any]) -> None:
    """Print it with a single write."""
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def main() -> None:
    """Join, and train one run after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=json.loads, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--ratio", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--counted", default=None, help="the interface whose traffic is this rank's alone")
    options = parser.parse_args()
    runs = [Run(**fields) for fields in options.runs]
    try:
        with ExitStack() as stack:
            dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
            stack.callback(dist.destroy_process_group)
            communicator = None
            if any(run.system.startswith("p4reduce") for run in runs):
                communicator = stack.enter_context(
                    Communicator(job="train", slots=options.slots, timeout=options.timeout)
                )
            ranks = Ranks(communicator, options)
            workloads = {name: make(name) for name in dict.fromkeys(run.model for run in runs)}
            for number, run in enumerate(runs):
                report({"run": number, "rank": ranks.rank, **ranks.train(run, workloads[run.model])})
    except Exception as error:
        report({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        raise


if __name__ == "__main__":
    main()
