# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model by name: the one key that stays the same whatever buckets DDP puts them into."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel


class Parameters:
    """Of the model that DDP trains, wrapped or not; names are without DDP's "module."."""

    def __init__(self, model: torch.nn.Module) -> None:
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        self.by_name: dict[str, torch.Tensor] = dict(plain.named_parameters())
        self._names = {parameter: name for name, parameter in self.by_name.items()}

    def name(self, parameter: torch.Tensor) -> str:
        """Of a parameter that DDP hands to a hook. Raises ValueError if it is not one of this model's."""
        name = self._names.get(parameter)
        if name is None:
            raise ValueError(
                f"DDP reduces a parameter of shape {tuple(parameter.shape)} that is none of the given model's: "
                "model must be what DDP wraps"
            )
        return name
