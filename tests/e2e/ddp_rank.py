# SPDX-License-Identifier: Apache-2.0
"""One rank of DDP trainings, as a process. Prints one JSON object a training: losses, weights' digest, statistics.

The model's parameters are whole blocks, so which values share a block does not depend on DDP's buckets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from p4reduce import Communicator, P4ReduceError
from p4reduce import ddp as hooks

WORDS, WIDTH, BATCH, LENGTH = 512, 64, 8, 4

HOOKS: dict[str, tuple[Any, Any]] = {
    "allreduce": (
        lambda communicator, _, **knobs: hooks.AllreduceState(communicator, **knobs),
        hooks.allreduce_hook,
    ),
    "top-k": (hooks.BlockTopKState, hooks.block_topk_hook),
    "elements": (hooks.ElementTopKState, hooks.element_topk_hook),
    "threshold": (hooks.BlockThresholdState, hooks.block_threshold_hook),
    "random-k": (hooks.BlockRandomKState, hooks.block_randomk_hook),
    "hierarchical": (
        lambda communicator, _, **knobs: hooks.HierarchicalState.of_hosts(
            controller=communicator._options.controller, **knobs
        ),
        hooks.hierarchical_hook,
    ),
}
WRAPPERS: dict[str, Any] = {"": lambda hook: hook, "bf16": hooks.bf16_wrapper}


@dataclass(frozen=True)
class Training:
    """A training that a plan asks for.

    hook: one of HOOKS; "" for none, which is Gloo. bucket_mb: DDP's bucket_cap_mb. checkpoint: folder.
    load, save: at which step to load from the checkpoint, and after which to save; 0 for never. record: the folder to
    record gradients in; "" for none. die: before the second bucket of this step, rank `dies` kills itself; 0 for never.
    """

    hook: str = "allreduce"
    wrapper: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    steps: int = 6
    bucket_mb: float = 0.01
    checkpoint: str = ""
    load: int = 0
    save: int = 0
    record: str = ""
    die: int = 0
    dies: int = -1


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Flatten(), nn.Linear(LENGTH * WIDTH, WIDTH), nn.ReLU(),
                         nn.Linear(WIDTH, WIDTH))  # fmt: skip


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of words, and the class of each row, by a rule that can be learnt."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    return words, words[:, 0] % 8


def train(training: Training, communicator: Communicator) -> dict[str, Any]:
    rank = communicator.rank
    module = model()
    parallel = DistributedDataParallel(module, bucket_cap_mb=training.bucket_mb)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    state, buckets, step = None, 0, 0
    recorder = hooks.Recorder(training.record, parallel, every=2) if training.record else None

    def hook(state, bucket):  # type: ignore[no-untyped-def] # DDP takes no annotations that are strings
        nonlocal buckets
        buckets += 1
        if training.die and step == training.die and rank == training.dies and bucket.index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        chosen = HOOKS[training.hook][1]
        if recorder is not None:
            chosen = recorder.wrap(chosen)
        return chosen(state, bucket)

    if training.hook:
        state = HOOKS[training.hook][0](communicator, parallel, **training.knobs)
        parallel.register_comm_hook(state, WRAPPERS[training.wrapper](hook))
    if training.load:
        shared, own = checkpoint(training, training.load, rank)
        saved = torch.load(shared, weights_only=True)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(torch.load(own, weights_only=True))
    losses = {}
    for step in range(training.load, training.steps):
        words, targets = batch(step, rank)
        loss = nn.functional.cross_entropy(parallel(words), targets)
        optimizer.zero_grad()
        started = time.monotonic()
        try:
            loss.backward()
        except P4ReduceError as error:
            return {"step": step, "error": type(error).__name__, "message": str(error),
                    "seconds": time.monotonic() - started}  # fmt: skip
        optimizer.step()
        losses[step] = float(loss)
        if step + 1 == training.save:
            shared, own = checkpoint(training, step + 1, rank)
            if rank == 0:
                torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, shared)
            torch.save(state.state_dict(), own)
    if isinstance(state, hooks.HierarchicalState):
        state.communicator.close()
    weights = b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())
    return {
        "losses": list(losses.values()),
        "digest": hashlib.sha256(weights).hexdigest(),
        "buckets": buckets,
        "stats": asdict(state.stats()) if hasattr(state, "stats") else None,
    }


def checkpoint(training: Training, step: int, rank: int) -> tuple[Path, Path]:
    """Return the paths of a step's checkpoint: the file that all ranks share, and this rank's own."""
    folder = Path(training.checkpoint)
    return folder / f"{step}.pt", folder / f"{step}-{rank}.pt"


def main() -> None:
    """Run the plan in the first argument. It has Communicator's options, trainings, and a rendezvous file."""
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    options = plan["options"]
    dist.init_process_group(
        "gloo", f"file://{plan['rendezvous']}", rank=options["rank"], world_size=options["world_size"]
    )
    with contextlib.suppress(P4ReduceError), Communicator(**options) as communicator:
        for training in plan["trainings"]:
            event = train(Training(**training), communicator)
            print(json.dumps(event), flush=True)
            if "error" in event:
                os._exit(0)  # what waits for the rank that is gone would hold up the end


if __name__ == "__main__":
    main()
