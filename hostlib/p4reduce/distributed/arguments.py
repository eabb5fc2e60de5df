# SPDX-License-Identifier: Apache-2.0
"""The arguments of a process group's methods, in all forms that PyTorch's own methods accept.

A method accepts a list of tensors and an options object, or one tensor and options one by one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch


def options(kind: Any, given: Any = None, **fields: Any) -> Any:
    """Return options of the class `kind`: `given`, if it is of that class, else new ones.

    fields: the values of new options; None keeps the default. `given` is then the value of the first field that it
    fits: a timedelta fits the time-out, anything else the other fields.
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
    """Return one tensor or several as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def as_lists(lists: Any, tensors: Any) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """Return lists of tensors, and the tensor that belongs to each, also for a single list and its tensor."""
    if isinstance(tensors, torch.Tensor):
        return [list(lists)], [tensors]
    return [list(each) for each in lists], list(tensors)
