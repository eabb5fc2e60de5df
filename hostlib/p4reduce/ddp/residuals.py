# SPDX-License-Identifier: Apache-2.0
"""Error feedback: what of a parameter's gradients has not been sent yet, to be added to the next one.

Seide et al. ("1-Bit Stochastic Gradient Descent", Interspeech 2014) for the idea; Karimireddy et al. ("Error Feedback
Fixes SignSGD", ICML 2019) for why training converges with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from p4reduce.ddp.parameters import Parameters, plain_name
from p4reduce.errors import P4ReduceError


class Residuals:
    """One float32 tensor a parameter, of its shape, keyed by its name in the model.

    By parameter and not by bucket, because DDP forms its buckets anew after the first iteration, and a run that goes on
    from a checkpoint may form others.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}
        self._used: list[int] = []  # of the parameters of the bucket at hand, those that have a gradient
        self.parameters: Parameters | None = None
        """Of the model; not pickled."""

    def add_to(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Add to a bucket's gradients what was left of earlier ones, and keep the sums; `take` must follow.

        What is left of a parameter whose gradient is all zeros waits until it has another: where no rank has used it,
        DDP leaves its gradient as it is, whatever comes back in the bucket (`find_unused_parameters`).
        """
        parts = self._parts(buffer, parameters)
        used = torch.stack([part.any() for _, part in parts]).tolist()
        self._used = [index for index, any_ in enumerate(used) if any_]
        for index in self._used:
            kept, part = parts[index]
            part.copy_(kept.add_(part))

    def take(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], *, finite: bool) -> None:
        """Take what is sent, which the bucket holds now, off what is kept.

        finite: whether all of what is sent is. What is not is sent, and nothing of it kept: an infinity less itself is
        NaN, and what rounded to an infinity leaves one.
        """
        parts = self._parts(buffer, parameters)
        for index in self._used:
            kept, part = parts[index]
            kept.sub_(part)
            if not finite:
                kept.nan_to_num_(0.0, 0.0, 0.0)

    def put_back(self, residual: torch.Tensor, parameters: Sequence[torch.Tensor]) -> None:
        """Keep what was taken off, but got lost on its way."""
        for kept, part in self._parts(residual, parameters):
            kept.add_(part.to(kept.device))

    def norm(self) -> float:
        """Return the l2 norm of all that is kept."""
        return float(torch.stack([kept.norm() for kept in self._kept.values()]).norm()) if self._kept else 0.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copy of what is kept, by parameter's name."""
        return {name: kept.clone() for name, kept in self._kept.items()}

    def load_state_dict(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Take over what another model of the same parameters kept. Raises ValueError where they differ."""
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
        """Each parameter's residual and its part of the buffer, both 1-d, in the order of the parameter's memory."""
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
            kept = self._kept[name] = fresh.copy_(kept)  # the parameter's memory has changed its order
        return kept


def _zeros_like(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
