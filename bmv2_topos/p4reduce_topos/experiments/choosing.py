# SPDX-License-Identifier: Apache-2.0
"""Of an experiment, the points that are chosen on the command line: values, systems, and what stays the same."""

from __future__ import annotations

from dataclasses import fields, replace

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second, elements
from p4reduce_topos.experiments.measuring import SYSTEMS
from p4reduce_topos.experiments.series import Experiment, Point

WHOLE = ("workers", "numel", "slots", "rate", "block_size")
MOST_WORKERS = 32


def chosen(experiment: Experiment, values: str, systems: str, **fixed: str) -> Experiment:
    """The experiment with other values, systems, or fixed fields of `Point`; what is "" stays. Raises P4ReduceError or
    ValueError for what is not accepted."""
    made = experiment
    if values:
        made = replace(made, values=tuple(_number(made.varied, "--values", one) for one in _parts(values)))
    if systems:
        named = tuple(_parts(systems))
        if wrong := [one for one in named if one not in SYSTEMS]:
            raise P4ReduceError(f"--systems {wrong[0]}: accepted are {', '.join(SYSTEMS)}")
        made = replace(made, systems=named)
    given = {name: value for name, value in fixed.items() if value}
    if made.varied in given:
        raise P4ReduceError(f"{option(made.varied)} {given[made.varied]}: it is what varies, over --values")
    numbers = {name: _number(name, option(name), value) for name, value in given.items()}
    return replace(made, fixed={**made.fixed, **numbers})


def option(name: str) -> str:
    """What a field of `Point` is called on the command line."""
    return f"--{name.replace('_', '-')}"


def _parts(text: str) -> list[str]:
    parts = [one.strip() for one in text.split(",")]
    if not all(parts):
        raise P4ReduceError(f"{text!r}: accepted is one or several, with commas between")
    return parts


def _number(name: str, called: str, text: str) -> float:
    """A value of a field of `Point`, in its own words: sizes for numel, rates for rate."""
    assert name in {field.name for field in fields(Point)}
    if name == "rate":
        return bits_per_second(text, called)
    if name == "numel":
        return elements(text, "float32")
    try:
        number = int(text) if name in WHOLE else float(text)
    except ValueError:
        raise P4ReduceError(f"{called} {text}: accepted for {name} are numbers") from None
    least, most = {
        "workers": (1, MOST_WORKERS), "slots": (1, 512), "block_size": (32, 256), "late": (0, 60),
    }.get(name, (0, 1))  # fmt: skip
    if not least <= number <= most:
        raise P4ReduceError(f"{called} {text}: accepted for {name} is {least} to {most}")
    return number
