# SPDX-License-Identifier: Apache-2.0
"""One rank of `p4reduce bench train`, which trains each model with each system on the same batches.

It prints a JSON object for each step (only rank 0), for each run, and for an error.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import argparse
import json
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
from p4reduce.ddp import Recorder
from p4reduce.ddp.recording import Hook
from p4reduce_bench.allreduce.rank import report
from p4reduce_bench.training.hooks import Systems
from p4reduce_bench.training.trainings import RECORDED, Run, evaluated_after
from p4reduce_bench.training.workloads import WORKLOADS, Workload


class Ranks:
    """The state that all runs of a rank share."""

    def __init__(self, communicator: Communicator | None, options: argparse.Namespace) -> None:
        self.options = options
        self.systems = Systems(communicator, options)
        self.rank = dist.get_rank()

    def train(self, run: Run, workload: Workload) -> dict[str, Any]:
        """Return losses, seconds and bytes sent by the end of each step, and losses on held-out samples."""
        options = self.options
        torch.manual_seed(run.seed)
        model = workload.model()
        ddp = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        optimizer = workload.optimizer(model)
        recording = _Recording(options.folder / run.model, ddp) if run.recorded else None
        system = self.systems.make(run.system, ddp)
        if system.hook is not None:
            ddp.register_comm_hook(system.state, recording.wrap(system.hook) if recording else system.hook)
        generator = torch.Generator().manual_seed(1000 * run.seed + self.rank)
        extra = 1 + RECORDED if recording else 0
        batches = [workload.draw(workload.batch, generator) for _ in range(options.steps + extra)]
        evaluated = evaluated_after(options.steps, options.evaluations)
        held_out = [self._held_out_loss(model, workload)]
        losses, ends, traffic = [], [], [system.traffic(0)]
        dist.barrier()
        started = time.perf_counter()
        for step, batch in enumerate(batches[: options.steps], start=1):
            loss = ddp(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
            ends.append(time.perf_counter() - started)
            traffic.append(system.traffic(step))
            if self.rank == 0:
                report({"step": step, "loss": losses[-1]})
            if step in evaluated:
                stopped = time.perf_counter()
                held_out.append(self._held_out_loss(model, workload))
                dist.barrier()
                started += time.perf_counter() - stopped
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
            "held_out": held_out,
            "traffic": {name: [after[name] - traffic[0][name] for after in traffic[1:]] for name in traffic[0]},
            "batch": workload.batch,
            "backend": backend().name,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }

    def _held_out_loss(self, model: torch.nn.Module, workload: Workload) -> float | None:
        """Return rank 0's loss on the same samples each time, and None at other ranks, which wait for it."""
        if self.rank:
            return None
        with torch.no_grad():
            return float(model(*workload.draw_held_out(workload.held_out, torch.Generator().manual_seed(0))))


class _Recording:
    """A recorder of gradients that starts after the timed steps."""

    def __init__(self, folder: Path, ddp: DistributedDataParallel) -> None:
        self._recorder = Recorder(folder, ddp, every=1, files=RECORDED)
        self.active = False

    def wrap(self, hook: Hook) -> Hook:
        """Return a hook that records while this is active."""
        recorded = self._recorder.wrap(hook)

        def chosen(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            return (recorded if self.active else hook)(state, bucket)

        return chosen


def _workload(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]()
    from p4reduce_bench.training.architectures import Architecture

    return Architecture(name)


def main() -> None:
    """Join, and train one run after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=json.loads, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--ratio", type=float, required=True)
    parser.add_argument("--start-iteration", type=int, required=True)
    parser.add_argument("--evaluations", type=int, required=True)
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
            workloads = {name: _workload(name) for name in dict.fromkeys(run.model for run in runs)}
            for number, run in enumerate(runs):
                report({"run": number, "rank": ranks.rank, **ranks.train(run, workloads[run.model])})
    except Exception as error:
        report({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        raise


if __name__ == "__main__":
    main()
