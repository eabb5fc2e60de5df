# SPDX-License-Identifier: Apache-2.0
"""The arguments of a process group's methods, in all the forms that PyTorch's own take.

A method takes a list of tensors and an object of options, or a tensor and options one by one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch


def options(kind: Any, given: Any = None, **fields: Any) -> Any:
    """Options of a `kind`: `given`, if it is of the kind, else new ones.

    fields: of new ones, where None keeps the default. `given` is then the value of the first of them that it fits: a
    time-out is a timedelta, and nothing else is one.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if given is not None:
        names = [name for name in fields if (name == "timeout") == isinstance(given, timedelta)]
        if not names:
            raise TypeError(f"{given!r} is a {type(given).__name__}: accepted is {kind.__name__}")
        fields = {**fields, names[0]: given}
    for name, value in fields.items():
        if value is not None:
            try:
                setattr(made, name, value)
            except TypeError:
                accepted = type(getattr(made, name)).__name__
                raise TypeError(f"{name}={value!r} is of type {type(value).__name__}: accepted is {accepted}") from None
    return made


def as_list(tensors: Any) -> list[torch.Tensor]:
    """One tensor or several as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def as_lists(lists: Any, tensors: Any) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """List of tensors, and the tensor that belongs to each, of which there may be one alone."""
    if isinstance(tensors, torch.Tensor):
        return [list(lists)], [tensors]
    return [list(each) for each in lists], list(tensors)
