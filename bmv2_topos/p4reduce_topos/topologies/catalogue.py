# SPDX-License-Identifier: Apache-2.0
"""The topologies by name, and what there is to choose of each.

A topology is made by a function, `build(workers, edge)`, or `build(workers, edge, core)` where switches have links
between them. What else it takes, by keyword alone, are whole numbers: its shape. These and `core` have defaults.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from p4reduce_topos.model import Topology
from p4reduce_topos.topologies import bottleneck, leaf_spine, star, tree, two_racks


@dataclass(frozen=True)
class Design:
    """A topology whose numbers are still to be chosen."""

    build: Callable[..., Topology]

    @property
    def text(self) -> str:
        """What it is, and its diagram: the docstring of the module."""
        return sys.modules[self.build.__module__].__doc__ or ""

    @property
    def has_core(self) -> bool:
        """Whether there are links between switches."""
        return "core" in inspect.signature(self.build).parameters

    @property
    def shape(self) -> tuple[str, ...]:
        """The numbers beside those that all have."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


TOPOLOGIES = {
    "star": Design(star.build),
    "two-racks": Design(two_racks.build),
    "tree": Design(tree.build),
    "leaf-spine": Design(leaf_spine.build),
    "bottleneck": Design(bottleneck.build),
}
ACCEPTED = f"{', '.join(TOPOLOGIES)}, or your own as FILE.py:FUNCTION, FILE.yaml or FILE.json"


def find(name: str) -> Design:
    """Return the topology of that name, or that of a function in a file, which is executed. Raises ValueError."""
    if name in TOPOLOGIES:
        return TOPOLOGIES[name]
    file, _, function = name.rpartition(":")
    if not file.endswith(".py"):
        raise ValueError(f"topology {name}: accepted are {ACCEPTED}")
    try:
        module = module_of(file, "own_topology")
    except ValueError as error:
        raise ValueError(f"topology {name}: {error}") from None
    build = getattr(module, function, None)
    if not callable(build) or not {"workers", "edge"} <= set(inspect.signature(build).parameters):
        raise ValueError(f"topology {name}: there must be a function {function}(workers, edge) in {file}")
    return Design(build)


def module_of(file: str, name: str) -> ModuleType:
    """Execute a file, under a name of its own. Raises ValueError where there is none, or where it raises."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses, and `text`, look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file} cannot be executed: {type(error).__name__}: {error}") from error
    return module
