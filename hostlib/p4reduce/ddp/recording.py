# SPDX-License-Identifier: Apache-2.0
"""A recorder of the gradients of a training, for `p4reduce analyze`.

No `from __future__ import annotations` here: DDP inspects the hooks' annotations as objects.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from p4reduce import settings
from p4reduce.ddp.parameters import Parameters
from p4reduce.tensors.recordings import Facts, path_of, write

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


class Recorder:
    """A recorder that writes the gradients that a rank's hook gets, before they are averaged, every few iterations.

    Use: `ddp.register_comm_hook(state, Recorder("gradients", ddp).wrap(allreduce_hook))`, on all ranks, then
    `p4reduce analyze gradients`. Under a wrapper such as `fp16_wrapper`, the recorded gradients are rounded.

    folder: folder in which each rank writes `gradients-<iteration>-rank<rank>.npz`, during the backward pass. A file is
        as large as the gradients, or smaller if they are mostly zeros.
    model: the model that DDP trains, wrapped or not; gradients are stored by its parameters' names.
    every: iterations between files. The first file is from iteration `every`, after DDP has formed its final buckets.
    files: the most files to write.
    rank, world_size: by default those of the default process group.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: torch.nn.Module,
        *,
        every: int = 100,
        files: int = 10,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._parameters = Parameters(model)
        self._every = settings.integer("every", every, 1, 1 << 31)
        self._files = settings.integer("files", files, 0, 1 << 31)
        self._rank = dist.get_rank() if rank is None else rank
        self._world_size = dist.get_world_size() if world_size is None else world_size
        self._iteration = 0
        self._buckets: list[list[str]] = []
        self._gradients: dict[str, Any] = {}

    def wrap(self, hook: Hook) -> Hook:
        """Return a hook that records each bucket and then calls `hook`."""

        def recorded(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            if self._iteration and self._iteration % self._every == 0 and self._files:
                self._record(bucket)
            if bucket.is_last():
                self._iteration += 1
            return hook(state, bucket)

        return recorded

    def _record(self, bucket: GradBucket) -> None:
        if bucket.index() == 0:
            self._buckets, self._gradients = [], {}
        parameters = bucket.parameters()
        names = [self._parameters.name(parameter) for parameter in parameters]
        parts = torch.split_with_sizes(bucket.buffer(), [parameter.numel() for parameter in parameters])
        for name, part in zip(names, parts, strict=True):
            plain = part.float() if part.dtype == torch.bfloat16 else part  # NumPy has no bfloat16
            self._gradients[name] = plain.cpu().numpy().copy()
        self._buckets.append(names)
        if bucket.is_last():
            facts = Facts(self._rank, self._world_size, self._iteration, self._buckets)
            write(path_of(self._folder, self._iteration, self._rank), facts, self._gradients)
            self._gradients = {}
            self._files -= 1
