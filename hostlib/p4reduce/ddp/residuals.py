# SPDX-License-Identifier: Apache-2.0
"""Error feedback: the part of a parameter's gradient that is not sent, its residual, is added to the next gradient.

The idea is from Seide et al. ("1-Bit Stochastic Gradient Descent", Interspeech 2014). Karimireddy et al. ("Error
Feedback Fixes SignSGD", ICML 2019) show why training converges with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from p4reduce.ddp.parameters import Parameters, plain_name
from p4reduce.errors import P4ReduceError


class Residuals:
    """The residuals: for each parameter, by its name, one float32 tensor of its shape.

    The key is the parameter and not the bucket, since DDP forms new buckets after the first iteration, and a run from a
    checkpoint may form others again.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._used: list[int] = []  # indices of the current bucket's parameters that have a gradient
        self.parameters: Parameters | None = None
        """The model's parameters; not pickled."""

    def add_to(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add the residuals to a bucket's gradients, and keep the sums; `subtract` must follow.

        If a parameter's gradient is all zeros, its residual waits for the next one. If no rank has used the parameter,
        DDP leaves its gradient as it is, whatever the bucket's average says (`find_unused_parameters`).
        """
        parts = self._parts(buffer, parameters)
        used = torch.stack([part.any() for _, part in parts]).tolist()
        self._used = [index for index, any_ in enumerate(used) if any_]
        for index in self._used:
            kept, part = parts[index]
            part.copy_(kept.add_(part))

    def subtract(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], *, finite: bool) -> None:
        """Subtract the values to send, which the bucket holds now, from the kept sums: the residuals are left.

        finite: whether all values to send are finite. Others are sent, but leave no residual: an infinity minus itself
        is NaN, and a value that was rounded to infinity would leave an infinity.
        """
        parts = self._parts(buffer, parameters)
        for index in self._used:
            kept, part = parts[index]
            kept.sub_(part)
            if not finite:
                kept.nan_to_num_(0.0, 0.0, 0.0)

    def put_back(self, residual: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add values that were subtracted, but lost on the wire, to the residuals again."""
        for kept, part in self._parts(residual, parameters):
            kept.add_(part.to(kept.device))

    def norm(self) -> float:
        """Return the l2 norm of all residuals."""
        return float(torch.stack([kept.norm() for kept in self._kept.values()]).norm()) if self._kept else 0.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the residuals by parameter name."""
        return {name: kept.clone() for name, kept in self._kept.items()}

    def load_state_dict(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Load the residuals of another model with the same parameters. Raises ValueError if the parameters differ."""
        parameters = self._known().by_name
        kept = {plain_name(name): tensor for name, tensor in kept.items()}
        for name, tensor in kept.items():
            if name not in parameters:
                raise ValueError(f"residual of parameter {name!r}: the model has no parameter of that name")
            shape = parameters[name].shape
            if tensor.shape != shape:
                raise ValueError(
                    f"residual of parameter {name!r} has shape {tuple(tensor.shape)}: the parameter's is {tuple(shape)}"
                )
        self._kept = {name: _zeros_like(parameters[name]).copy_(tensor) for name, tensor in kept.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "parameters": None}

    def _known(self) -> Parameters:
        if self.parameters is None:
            raise P4ReduceError("this state was pickled without its model: set its attribute model")
        return self.parameters

    def _parts(
        self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter's residual and part of the buffer, both 1-d, in the order of the parameter's memory."""
        parts = torch.split_with_sizes(buffer, [parameter.numel() for parameter in parameters])
        return [
            (self._of(parameter).as_strided((part.numel(),), (1,)), part)
            for parameter, part in zip(parameters, parts, strict=True)
        ]

    def _of(self, parameter: torch.Tensor) -> torch.Tensor:
        name = self._known().name(parameter)
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _zeros_like(parameter)
        elif kept.stride() != parameter.stride() and kept.stride() != (fresh := _zeros_like(parameter)).stride():
            kept = self._kept[name] = fresh.copy_(kept)  # the parameter's strides have changed
        return kept


def _zeros_like(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
