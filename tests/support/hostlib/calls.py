# SPDX-License-Identifier: Apache-2.0
"""A table of every collective of a communicator, for tests of their common behaviour."""

from __future__ import annotations

from typing import Any

from p4reduce import Communicator


class Call:
    """A method of a communicator, with the arguments that follow the tensor."""

    def __init__(self, method: str, *arguments: Any, **options: Any) -> None:
        self.method, self.arguments, self.options = method, arguments, options

    def __call__(self, each: Communicator, tensor: Any) -> Any:
        return getattr(each, self.method)(tensor, *self.arguments, **self.options)

    def start(self, each: Communicator, tensor: Any, **more: Any) -> Any:
        """Call the asynchronous form of the method."""
        return getattr(each, f"{self.method}_async")(tensor, *self.arguments, **self.options, **more)


CALLS = {
    "sum": Call("allreduce"),
    "premultiplied": Call("allreduce", factor=2.0),
    "average": Call("allreduce", "average", factor=3.0),
    "max": Call("allreduce", "max"),
    "elements": Call("allreduce", layout="elements"),
    "reduce": Call("reduce", 0),
    "reduce max": Call("reduce", 0, "max"),
    "reduce_scatter": Call("reduce_scatter"),
    "reduce_scatter min": Call("reduce_scatter", "min"),
    "broadcast": Call("broadcast", 1),
    "all_gather": Call("all_gather"),
}
"""All collectives. Some divide the first dimension of the tensor among the ranks."""
