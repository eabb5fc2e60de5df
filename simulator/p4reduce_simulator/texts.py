# SPDX-License-Identifier: Apache-2.0
"""Networks as text: properties on the command line, and topologies in files, in the form of `p4reduce topo`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second
from p4reduce_simulator.network import Cable, Host, Link, Network, Switch
from p4reduce_simulator.workload import OVERLAPS, PATTERNS, Workload

LINK = "rate=100gbit,delay=1us,queue=1MB,mark=200kB,loss=0.01,burst=16kB"
HOST = "receive=300ns,receive-byte=50ps,send=250ns,send-byte=50ps,scan-byte=71ps,element=3ns,index=70ns"
PATTERN = f"How non-zeros lie: one of {', '.join(PATTERNS)}."
RUN = "Elements of a row; with runs and clustered, elements or blocks of a run on average."
OVERLAP = f"Overlap of the ranks' non-zeros: one of {', '.join(OVERLAPS)}, or a share that all have in common."
SWITCH = "delay=500ns,receive=200ns,send=50ns"
_KEYS = ("name", "switches", "hosts", "links", "edge", "core", "workers", "roots", "hierarchical")
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}
_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}

P = TypeVar("P", Link, Host, Switch)


def seconds(option: str, text: str) -> float:
    """Return a time such as 1.5us. Raises P4ReduceError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|ms|us|ns|ps)", text)
    if found is None:
        raise P4ReduceError(f"{option} {text}: accepted are times such as 10ms, 1.5us and 300ns")
    return float(found[1]) * _TIMES[found[2]]


def _value(option: str, name: str, text: str) -> float:
    if name == "rate":
        return bits_per_second(text, f"{option}: rate")
    if name in ("queue", "mark", "burst"):
        found = re.fullmatch(r"(\d+)([kMG]?)B", text)
        if found is None:
            raise P4ReduceError(f"{option}: {name} {text}: accepted are sizes such as 64kB")
        return int(found[1]) * _SIZES[found[2]]
    if name == "loss":
        try:
            return float(text)
        except ValueError:
            raise P4ReduceError(f"{option}: loss {text}: accepted are shares of 0 to 1") from None
    return seconds(f"{option}: {name}", text)


def properties(option: str, text: str, default: P, example: str) -> P:
    """Return properties such as "rate=1gbit,delay=5us", with `default` for those that are not named.

    Raises P4ReduceError.
    """
    accepted = {field.name for field in fields(default)}
    made: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name.replace("-", "_") not in accepted:
            raise P4ReduceError(f"{option} {text}: accepted are some of {example}")
        made[name.replace("-", "_")] = _value(option, name, value)
    try:
        return replace(default, **made)
    except ValueError as error:
        raise P4ReduceError(f"{option} {text}: {error}") from None


def workload(**settings: Any) -> Workload:
    """Return the workload with settings from options of the same names. Raises P4ReduceError."""
    with suppress(KeyError, ValueError):  # a share; names and what is neither stay texts
        settings["overlap"] = float(settings["overlap"])
    try:
        return Workload(**settings)
    except ValueError as error:
        name, rest = str(error).split(" ", 1)
        raise P4ReduceError(f"--{name.replace('_', '-')} {rest}") from None


def read_network(file: Path, edge: str, core: str, ranks: int | None = None) -> Network:
    """Return the network in a YAML or JSON file: its first `ranks` workers.

    Raises P4ReduceError. edge, core: properties that replace the file's, unless empty.
    """
    made = _read(file)
    strange = [key for key in made if key not in _KEYS]
    if strange:
        raise P4ReduceError(f"{file}: the key {strange[0]!r}: accepted are the keys {', '.join(_KEYS)}")
    missing = [key for key in ("switches", "hosts") if key not in made]
    if missing:
        raise P4ReduceError(f"{file}: the key {missing[0]!r} is missing")
    try:
        hosts, switches = dict(made["hosts"]), [str(switch) for switch in made["switches"]]
        cables = tuple(
            Cable(str(a), str(b), properties(f"{file}: link", own[0], Link(), LINK) if own else None)
            for a, b, *own in made.get("links", [])
        )
        workers = list(made.get("workers", hosts))
        if ranks is not None and ranks > len(workers):
            raise P4ReduceError(f"--ranks {ranks}: accepted are 1 to {len(workers)}, the workers of {file}")
        strangers = [worker for worker in workers if worker not in hosts]
        if strangers:
            raise P4ReduceError(f"{file}: the worker {strangers[0]!r}: accepted are the hosts {', '.join(hosts)}")
        return Network(
            str(made.get("name", file.stem)),
            tuple(switches),
            tuple(str(hosts[worker]) for worker in workers[:ranks]),
            cables,
            tuple(map(str, made.get("roots", switches[:1]))),
            properties(f"{file}: edge", edge or made.get("edge", ""), Link(), LINK),
            properties(f"{file}: core", core or made.get("core", ""), Link(), LINK),
        )
    except ValueError as error:
        raise P4ReduceError(f"{file}: {error}") from None
    except (AttributeError, TypeError) as error:
        raise P4ReduceError(
            f"{file}: a key has a value of another kind than docs/topologies.md shows: {error}"
        ) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise P4ReduceError(f"{file}: it cannot be read: {error}") from None
    load: Callable[[str], Any] = json.loads
    if file.suffix != ".json":
        try:
            import yaml
        except ModuleNotFoundError:
            raise P4ReduceError(f"{file}: YAML needs PyYAML: pip install 'p4reduce[simulator]'") from None
        load = yaml.safe_load
    try:
        made = load(text)
    except Exception as error:  # each parser has its own
        raise P4ReduceError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(made, dict):
        raise P4ReduceError(f"{file}: accepted is an object with the keys {', '.join(_KEYS)}")
    return made
