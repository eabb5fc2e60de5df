# SPDX-License-Identifier: Apache-2.0
"""A check that a hook's communicator has the same ranks as DDP's process group.

DDP does not pass its group to a hook. So the check searches all objects for the module, once for each communicator and
module. A bucket's parameters show whether it belongs to a module that was checked.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from p4reduce.api.communicator import Communicator


class CheckedRanks:
    """The modules of one state whose process groups were compared with its communicator.

    Modules may share a state. A pickled copy is empty.
    """

    def __init__(self) -> None:
        self._communicator: Communicator | None = None
        self._parameters: Any = WeakTensorKeyDictionary()  # of these modules, as keys

    def check(
        self, state: object, parameters: Sequence[torch.Tensor], communicator: Communicator, share: int = 1
    ) -> None:
        """Compare the groups of all modules that have a hook with `state`, if one of them is new.

        parameters: those of a bucket, all of one module.
        share: how many ranks of the group each rank of the communicator stands for.
        Raises ValueError on all ranks of the communicator if one of their groups has other ranks.
        """
        if self._communicator is communicator and (not parameters or parameters[0] in self._parameters):
            return
        modules = _modules_with(state)
        for module in modules:
            _check_group(module.process_group, communicator, share)
        if self._communicator is not communicator:
            self._communicator, self._parameters = communicator, WeakTensorKeyDictionary()
        for each in (*parameters, *(each for module in modules for each in module.parameters())):
            self._parameters[each] = None

    def __reduce__(self) -> Any:
        return CheckedRanks, ()


def _check_group(group: Any, communicator: Communicator, share: int) -> None:
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
    """Return the modules that have a hook with this state."""
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), DistributedDataParallel)
        and any(of is state for _, of in vars(one).get("_comm_hooks", ()))
    ]


def _digest(group: Any) -> int:
    text = ",".join(map(str, dist.get_process_group_ranks(group)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
