# SPDX-License-Identifier: Apache-2.0
"""What the words of the command line mean: topologies, their shapes, and what links do."""

from __future__ import annotations

import re

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second
from p4reduce_topos.model import Topology, Wire
from p4reduce_topos.topologies.catalogue import find

WIRE = "rate=100mbit,queue=64kB,delay=5ms,jitter=1ms,loss=0.01,duplicate=0.01,corrupt=0.01"


def build(name: str, workers: int, edge: str, core: str, shape: str) -> Topology:
    """Raises P4ReduceError or ValueError for what is not accepted."""
    design = find(name)
    options: dict[str, object] = {"workers": workers, "edge": wire("--edge", edge)}
    if core:
        if not design.has_core:
            raise P4ReduceError(f"--core {core}: {name} has no links between switches")
        options["core"] = wire("--core", core)
    for key, value in _pairs("--shape", shape):
        if key not in design.shape or not re.fullmatch("[0-9]{1,4}", value):
            accepted = ", ".join(f"{one}=NUMBER, 0 to 9999" for one in design.shape) or "nothing"
            raise P4ReduceError(f"--shape {shape}: accepted for {name} is {accepted}")
        options[key] = int(value)
    try:
        made = design.build(**options)
    except (P4ReduceError, ValueError):
        raise
    except Exception as error:  # the user's function
        chosen = ", ".join(f"{key}={value}" for key, value in options.items() if isinstance(value, int))
        why = f"{type(error).__name__}: {error}"
        raise P4ReduceError(f"topology {name}: its function does not accept {chosen}: {why}") from error
    if not isinstance(made, Topology):
        raise P4ReduceError(f"topology {name}: its function must return a Topology, not {made!r}")
    return made


def wire(option: str, text: str) -> Wire:
    """What "rate=100mbit,delay=5ms,queue=64kB,loss=0.01" says. Raises P4ReduceError or ValueError."""
    made: dict[str, float] = {}
    for key, value in _pairs(option, text):
        time = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", value)
        size = re.fullmatch(r"(\d+)(|k|M)B", value)
        share = re.fullmatch(r"\d*\.?\d+", value)
        if key == "rate":
            made[key] = bits_per_second(value, option)
        elif key in ("delay", "jitter") and time:
            made[key] = float(time[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[time[2]]
        elif key == "queue" and size:
            made[key] = int(size[1]) * {"": 1, "k": 1000, "M": 1_000_000}[size[2]]
        elif key in ("loss", "duplicate", "corrupt") and share:
            made[key] = float(value)
        else:
            raise P4ReduceError(f"{option} {text}: accepted are some of {WIRE}")
    return Wire(**made)  # type: ignore[arg-type]


def _pairs(option: str, text: str) -> list[tuple[str, str]]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise P4ReduceError(f"{option} {text}: accepted is NAME=VALUE, several with commas between")
    return [(key, value) for key, _, value in pairs]
