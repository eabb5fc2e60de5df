# SPDX-License-Identifier: Apache-2.0
"""Selection of an experiment and its points by options of the command line: values, systems and fixed parameters."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second, elements
from p4reduce_topos.arguments import build
from p4reduce_topos.experiments.measurement import SYSTEMS
from p4reduce_topos.experiments.series import EXPERIMENTS, Experiment, Point
from p4reduce_topos.files import SUFFIXES, read
from p4reduce_topos.topologies.catalogue import module_of

WHOLE = ("workers", "numel", "slots", "rate", "block_size")
MOST_WORKERS = 32
ACCEPTED = f"{', '.join(EXPERIMENTS)}, congestion, or your own as FILE.yaml, FILE.json or FILE.py:NAME"


def with_options(experiment: Experiment, values: str, systems: str, **fixed: str) -> Experiment:
    """Return the experiment with other values, systems, or fixed fields of `Point`. An empty text changes nothing.

    Raises P4ReduceError or ValueError for a text that is not accepted.
    """
    made = experiment
    if values:
        made = replace(made, values=tuple(_number(made.varied, "--values", one) for one in _parts(values)))
    if systems:
        named = tuple(_parts(systems))
        if wrong := [one for one in named if one not in SYSTEMS]:
            raise P4ReduceError(f"--systems {wrong[0]}: accepted are {', '.join(SYSTEMS)}")
        made = replace(made, systems=named)
    texts = {name: value for name in ("topology", "shape") if (value := fixed.pop(name, ""))}
    given = {name: value for name, value in fixed.items() if value}
    if made.varied in given:
        raise P4ReduceError(
            f"{option(made.varied)} {given[made.varied]}: the experiment varies it; give its values with --values"
        )
    numbers = {name: _number(name, option(name), value) for name, value in given.items()}
    all_fixed: dict[str, Any] = {**made.fixed, **numbers, **texts}
    file = str(all_fixed.get("topology", ""))
    if file.endswith(SUFFIXES) and "workers" not in {made.varied, *all_fixed}:  # the file has the number of workers
        all_fixed["workers"] = len(build(file, None, "", "", "").workers)
    made = replace(made, fixed=all_fixed)
    for point in made.points():
        point.build()  # raises if the topology is not accepted
    return made


_KEYS = ("summary", "varied", "values", "systems", "topology", "shape")
_NUMBERS = ("workers", "numel", "density", "slots", "rate", "drop_rate", "late", "block_size")


def find(name: str) -> tuple[str, Experiment]:
    """Return an experiment, and the name of the files with its figures. Raises P4ReduceError.

    name: the name of a built-in experiment, a file in YAML or JSON, or FILE.py:NAME. There NAME is an Experiment or a
    function that returns one.
    """
    if name in EXPERIMENTS:
        return name, EXPERIMENTS[name]
    if name.endswith(SUFFIXES):
        return Path(name).stem, _read(name)
    file, _, called = name.rpartition(":")
    if not file.endswith(".py"):
        raise P4ReduceError(f"experiment {name}: accepted are {ACCEPTED}")
    try:
        made = getattr(module_of(file, "own_experiment"), called, None)
    except ValueError as error:
        raise P4ReduceError(f"experiment {name}: {error}") from None
    made = made() if callable(made) else made
    if not isinstance(made, Experiment):
        raise P4ReduceError(f"experiment {name}: {called} must be an Experiment or return one, not {made!r}")
    return called, made


def _read(file: str) -> Experiment:
    """Return the experiment in a YAML or JSON file."""
    made = read(file, (*_KEYS, *_NUMBERS))
    varied, values = made.get("varied"), made.get("values")
    if varied not in _NUMBERS or not isinstance(values, list) or not values:
        raise P4ReduceError(
            f"{file}: an experiment needs `values`, a list, and `varied`, one of {', '.join(_NUMBERS)}; it has "
            f"{varied!r}, {values!r}"
        )
    topology = str(made.get("topology", Point.topology))
    # A topology's file, or FILE.py:NAME, is relative to the experiment's file.
    topology_file = Path(file).parent / (topology.rpartition(":")[0] if ":" in topology else topology)
    if topology_file.is_file():
        topology = str(topology_file.parent / Path(topology).name)
    fixed = {"topology": topology, "shape": str(made.get("shape", ""))}
    systems = made.get("systems", list(Experiment.systems))
    if not isinstance(systems, list):
        raise P4ReduceError(f"{file}: systems: {systems!r}: accepted is a list")
    # Values, systems and numbers become texts, so that they are checked as those on the command line are.
    experiment = Experiment(str(made.get("summary", "")), varied, (), fixed=fixed)
    numbers = {name: str(made[name]) for name in _NUMBERS if name in made}
    return with_options(experiment, ",".join(map(str, values)), ",".join(map(str, systems)), **numbers)


def option(name: str) -> str:
    """Return the option of the command line for a field of `Point`."""
    return f"--{name.replace('_', '-')}"


def _parts(text: str) -> list[str]:
    """Split a list with commas. Raises P4ReduceError."""
    parts = [one.strip() for one in text.split(",")]
    if not all(parts):
        raise P4ReduceError(f"{text!r}: accepted is one or several, separated by commas")
    return parts


def _number(name: str, called: str, text: str) -> float:
    """Return the value of a field of `Point` from its text, such as "4MiB" for numel or "50mbit" for rate.

    called: the option that errors name.
    """
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
        "workers": (1, MOST_WORKERS),
        "slots": (1, 512),
        "block_size": (32, 256),
        "late": (0, 60),
    }.get(name, (0, 1))  # density and drop_rate are shares
    if not least <= number <= most:
        raise P4ReduceError(f"{called} {text}: accepted for {name} is {least} to {most}")
    return number
