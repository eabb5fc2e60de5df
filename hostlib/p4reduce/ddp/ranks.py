# SPDX-License-Identifier: Apache-2.0
"""Whether a hook's communicator has the ranks whose gradients it averages: those of DDP's process group.

DDP does not tell a hook of its group. So the module is looked for among all objects, once for each communicator.
"""

from __future__ import annotations

import gc
import hashlib
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from p4reduce.communicator import Communicator


def check_ranks(state: object, communicator: Communicator, share: int = 1) -> None:
    """Raises ValueError on all ranks of the communicator if their groups are not of these ranks alone.

    share: how many ranks of the group each of the communicator stands for.
    """
    for module in _modules_with(state):
        group = module.process_group
        if group.size() != share * communicator.world_size:
            each = "" if share == 1 else f", each for {share}"
            raise ValueError(
                f"communicator has {communicator.world_size} ranks{each}, and DDP's process group has {group.size()}: "
                "pass a communicator of the same ranks"
            )
        own = _digest(group)
        every = communicator.all_gather(np.array([own], np.int64))
        if (every != own).any():
            raise ValueError(
                "communicator has ranks of several DDP process groups: pass one of this rank's group only, which is "
                f"{dist.get_process_group_ranks(group)}"
            )


def _modules_with(state: object) -> list[Any]:
    """Modules that have a hook with this state."""
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), DistributedDataParallel)
        and any(of is state for _, of in vars(one).get("_comm_hooks", ()))
    ]


def _digest(group: Any) -> int:
    text = ",".join(map(str, dist.get_process_group_ranks(group)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
