# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model by name: the one key that stays the same whatever buckets DDP puts them into."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

_OF_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What `torch.compile` and checkpoints of activations put into names."""


def plain_name(name: str) -> str:
    """Return a parameter's name in the model that was wrapped, so that checkpoints pass between wrapped and plain
    ones."""
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
    """Of the model that DDP trains, wrapped or not; names are as if nothing of it was wrapped, see `plain_name`."""

    def __init__(self, model: torch.nn.Module) -> None:
        plain = model
        while (inner := _wrapped_by(plain)) is not None:
            plain = inner
        self.by_name: dict[str, torch.Tensor] = {
            plain_name(name): parameter for name, parameter in plain.named_parameters()
        }
        self._names = {parameter: name for name, parameter in self.by_name.items()}

    def name(self, parameter: torch.Tensor) -> str:
        """Of a parameter that DDP hands to a hook. Raises ValueError if it is not one of this model's."""
        name = self._names.get(parameter)
        if name is None:
            raise ValueError(
                f"DDP reduces a parameter of shape {tuple(parameter.shape)} that the given model does not have: model "
                "must be the module that DDP wraps"
            )
        return name
