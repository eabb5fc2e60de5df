# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model by name: a key that does not depend on DDP's buckets."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

_OF_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""Prefixes that `torch.compile` and activation checkpointing add to names."""


def plain_name(name: str) -> str:
    """Return a parameter's name without wrappers, so that wrapped and plain models can share checkpoints."""
    for wrapper in _OF_WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _wrapped_by(model: torch.nn.Module) -> torch.nn.Module | None:
    if isinstance(model, DistributedDataParallel):
        module: torch.nn.Module = model.module
        return module
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) else None


class Parameters:
    """The parameters of the model that DDP trains, wrapped or not; for their names see `plain_name`."""

    def __init__(self, model: torch.nn.Module) -> None:
        plain = model
        while (inner := _wrapped_by(plain)) is not None:
            plain = inner
        self.by_name: dict[str, torch.Tensor] = {
            plain_name(name): parameter for name, parameter in plain.named_parameters()
        }
        self._names = {parameter: name for name, parameter in self.by_name.items()}

    def name(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter that DDP passes to a hook. Raises ValueError if the model does not have it."""
        name = self._names.get(parameter)
        if name is None:
            raise ValueError(
                f"DDP reduces a parameter of shape {tuple(parameter.shape)} that the given model does not have: model "
                "must be the module that DDP wraps"
            )
        return name
