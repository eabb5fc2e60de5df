# SPDX-License-Identifier: Apache-2.0
"""Topologies and experiments in YAML or JSON files, for users who do not program.

A topology in YAML:

name: two-rooms
switches: [s1, s2]
hosts: {h1: s1, h2: s1, h3: s2, h4: s2}     # Each host, with its switch.
links: [[s1, s2]]                           # Between switches. [s1, s2, "rate=1gbit"] has properties of its own.
edge: rate=100mbit                          # Properties of the hosts' links.
core: rate=100mbit,delay=1ms                # Properties of the links between switches.
workers: [h1, h2, h3, h4]                   # In the order of their ranks. The default is all hosts.
roots: [s2]                                 # The switches that compute the final sums. The default is the first switch.
hierarchical: false                         # With several roots: whether the switches below them add up, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_topos.link_properties import parse_link_properties
from p4reduce_topos.model import Link, LinkProperties, Topology

SUFFIXES = (".yaml", ".yml", ".json")
_KEYS = ("name", "switches", "hosts", "links", "edge", "core", "workers", "roots", "hierarchical")


def read(file: str | Path, keys: Collection[str]) -> dict[str, Any]:
    """Return the content of a file, in which only `keys` are accepted. Raises P4ReduceError."""
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise P4ReduceError(f"{file}: it cannot be read: {error}") from None
    made = _of_json(file, text) if str(file).endswith(".json") else _of_yaml(file, text)
    if not isinstance(made, dict) or (strange := [key for key in made if key not in keys]):
        said = f"the key {strange[0]!r}" if isinstance(made, dict) else type(made).__name__
        raise P4ReduceError(f"{file}: {said}: accepted are the keys {', '.join(keys)}")
    return made


def _of_json(file: str | Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise P4ReduceError(f"{file}: {error}") from None


def _of_yaml(file: str | Path, text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise P4ReduceError(f"{file}: YAML needs PyYAML, and JSON does not: pip install 'p4reduce[topos]'") from None
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise P4ReduceError(f"{file}: {' '.join(str(error).split())}") from None


def read_topology(file: str, workers: int | None, edge: str, core: str) -> Topology:
    """Return the topology in a file. Raises P4ReduceError or ValueError.

    workers: the number of workers, from the first; None means all.
    edge, core: properties that replace the file's edge and core, unless empty. Links with their own keep them.
    """
    made = read(file, _KEYS)
    hosts = _of(made, file, "hosts", dict, {})
    switches = _of(made, file, "switches", list, [])
    if not hosts or not switches:
        raise P4ReduceError(f"{file}: a topology has `hosts`, each with its switch, and `switches`")
    named = tuple(_of(made, file, "workers", list, list(hosts)))
    if workers is not None and not 1 <= workers <= len(named):
        raise P4ReduceError(f"--workers {workers}: {file} has {len(named)} workers")
    at_hosts = _link_properties(made, file, "edge", edge)
    between = _link_properties(made, file, "core", core)
    links = [Link(host, str(switch), at_hosts) for host, switch in hosts.items()]
    for link in _of(made, file, "links", list, []):
        if not isinstance(link, list) or not 2 <= len(link) <= 3 or not all(isinstance(part, str) for part in link):
            raise P4ReduceError(
                f"{file}: links: {link!r}: accepted is [SWITCH, SWITCH], or [SWITCH, SWITCH, PROPERTIES]"
            )
        links.append(
            Link(link[0], link[1], parse_link_properties(f"{file}: links:", link[2]) if len(link) == 3 else between)
        )
    roots = _of(made, file, "roots", list, switches[:1])
    name = str(made.get("name", Path(file).stem))
    hierarchical = _of(made, file, "hierarchical", bool, False)
    return Topology(name, tuple(hosts), tuple(switches), tuple(links), named[:workers], tuple(roots), hierarchical)


def _of(made: dict[str, Any], file: str, key: str, kind: type[Any], default: Any) -> Any:
    value = made.get(key, default)
    if not isinstance(value, kind):
        accepted = {
            "dict": "names with a value each, as {h1: s1}",
            "list": "a list, as [s1, s2]",
            "bool": "true or false",
        }.get(kind.__name__, "a text")
        raise P4ReduceError(f"{file}: {key}: {value!r}: accepted is {accepted}")
    return value


def _link_properties(made: dict[str, Any], file: str, key: str, given: str) -> LinkProperties:
    """Return the properties that the option gives, or else those in the file."""
    if given:
        return parse_link_properties(f"--{key}", given)
    return parse_link_properties(f"{file}: {key}:", _of(made, file, key, str, ""))
