# SPDX-License-Identifier: Apache-2.0
"""Arguments of the command line, parsed into a topology: its name, its shape, and the properties of its links."""

from __future__ import annotations

import re

from p4reduce.errors import P4ReduceError
from p4reduce_topos.files import SUFFIXES, read_topology
from p4reduce_topos.link_properties import LINK_PROPERTIES, pairs, parse_link_properties
from p4reduce_topos.model import Topology
from p4reduce_topos.topologies.catalogue import find

DEFAULT_WORKERS = 4


def build(name: str, workers: int | None, edge: str, core: str, shape: str) -> Topology:
    """Return the topology that the options of the command line describe.

    workers: the number of workers. None means as many as a file names, or else `DEFAULT_WORKERS`.

    Raises P4ReduceError or ValueError for an argument that is not accepted.
    """
    if name.endswith(SUFFIXES):
        if shape:
            raise P4ReduceError(f"--shape {shape}: {name} has no parameters")
        return read_topology(name, workers, edge, core)
    builder = find(name)
    options: dict[str, object] = {
        "workers": DEFAULT_WORKERS if workers is None else workers, "edge": parse_link_properties("--edge", edge)
    }  # fmt: skip
    if core:
        if not builder.has_core:
            raise P4ReduceError(f"--core {core}: {name} has no links between switches")
        options["core"] = parse_link_properties("--core", core)
    for key, value in pairs("--shape", shape):
        if key not in builder.shape or not re.fullmatch("[0-9]{1,4}", value):
            accepted = ", ".join(f"{one}=NUMBER, 0 to 9999" for one in builder.shape) or "nothing"
            raise P4ReduceError(f"--shape {shape}: accepted for {name} is {accepted}")
        options[key] = int(value)
    try:
        made = builder.build(**options)
    except (P4ReduceError, ValueError):
        raise
    except Exception as error:  # the function is the user's
        chosen = ", ".join(f"{key}={value}" for key, value in options.items() if isinstance(value, int))
        why = f"{type(error).__name__}: {error}"
        raise P4ReduceError(f"topology {name}: its function does not accept {chosen}: {why}") from error
    if not isinstance(made, Topology):
        raise P4ReduceError(f"topology {name}: its function must return a Topology, not {made!r}")
    return made


def has_core(name: str) -> bool:
    """Return whether the properties of links between switches can be chosen. Raises ValueError."""
    return name.endswith(SUFFIXES) or find(name).has_core


__all__ = ["DEFAULT_WORKERS", "LINK_PROPERTIES", "build", "has_core", "parse_link_properties"]
