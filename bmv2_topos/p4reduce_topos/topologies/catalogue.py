# SPDX-License-Identifier: Apache-2.0
"""The topologies by name, each with its parameters.

A function builds a topology: `build(workers, edge)`, or `build(workers, edge, core)` if switches have links between
them. Further parameters are keyword-only whole numbers: the topology's shape. These and `core` have defaults.
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
from p4reduce_topos.topologies import bottleneck, clos, leaf_spine, star, tree, two_racks


@dataclass(frozen=True)
class TopologyBuilder:
    """A topology whose parameters are still to be chosen."""

    build: Callable[..., Topology]

    @property
    def description(self) -> str:
        """The description and the diagram: the docstring of the function's module."""
        return sys.modules[self.build.__module__].__doc__ or ""

    @property
    def has_core(self) -> bool:
        """True if there are links between switches."""
        return "core" in inspect.signature(self.build).parameters

    @property
    def shape(self) -> tuple[str, ...]:
        """The names of the parameters that not all topologies have."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


TOPOLOGIES = {
    "star": TopologyBuilder(star.build),
    "two-racks": TopologyBuilder(two_racks.build),
    "tree": TopologyBuilder(tree.build),
    "leaf-spine": TopologyBuilder(leaf_spine.build),
    "clos": TopologyBuilder(clos.build),
    "bottleneck": TopologyBuilder(bottleneck.build),
}
ACCEPTED = f"{', '.join(TOPOLOGIES)}, or your own as FILE.py:FUNCTION, FILE.yaml or FILE.json"


def find(name: str) -> TopologyBuilder:
    """Return the topology of a name, or of a FILE.py:FUNCTION, which is executed. Raises ValueError."""
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
    return TopologyBuilder(build)


def module_of(file: str, name: str) -> ModuleType:
    """Execute a file as a module of this name, and return it. Raises ValueError if the file is missing or raises."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and `description` look it up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file} cannot be executed: {type(error).__name__}: {error}") from error
    return module
