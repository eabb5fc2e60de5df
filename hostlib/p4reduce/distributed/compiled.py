# SPDX-License-Identifier: Apache-2.0
"""A class decorator that keeps torch.compile away from methods that PyTorch's C++ calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def called_by_cpp(cls: Class) -> Class:
    """Keep Dynamo from tracing the public methods of the decorated class.

    A compiled DDP calls collectives from C++ while Dynamo compiles each Python frame that begins. It cannot trace the
    methods of an object that C++ owns: `torch._dynamo.exc.UnsafeScriptObjectError`.
    """
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and callable(method):
            setattr(cls, name, _untraced(method))
    return cls


def _untraced(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method` in a form that Dynamo does not trace.

    An import of torch._dynamo takes about two seconds, so calls go to `method` itself until another module has
    imported it.
    """

    untraced: Callable[..., Any] | None = None

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal untraced
        if untraced is None:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:
                return method(*args, **kwargs)
            untraced = disable(method)
        return untraced(*args, **kwargs)

    return call
