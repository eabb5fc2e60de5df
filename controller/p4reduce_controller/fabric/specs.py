# SPDX-License-Identifier: Apache-2.0
"""Switches as settings describe them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from p4reduce.protocol.constants import MAX_AGGREGATORS
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import SCHEMA, Settings
from p4reduce_controller.settings.texts import as_port
from p4reduce_controller.switches.trees import Trees, Uplink

_OF_SWITCHES = {"switches", "uplink"} | {key for key, one in SCHEMA.items() if one.spec.of == "switch"}


@dataclass(frozen=True)
class SwitchSpec:
    """`uplink`: by which port its parent is, and the parent's name."""

    name: str
    config: SwitchConfig
    uplink: tuple[int, str] | None = None


def specs_of(settings: Settings) -> list[SwitchSpec]:
    """All of them. Raises SettingsError."""
    trees, configs = settings.trees(), settings.switch_configs()
    settings.switch_tls()
    found = []
    for at, (name, config) in enumerate(zip(trees.names, configs, strict=True)):
        uplink = trees.uplinks.get(at)
        found.append(SwitchSpec(name, config, (uplink.port, trees.names[uplink.parent]) if uplink else None))
    return found


def spec_of(text: str, common: Settings) -> SwitchSpec:
    """Of a JSON object with the keys of one of [[switches]]. `common`: the settings of the controller. Raises
    SettingsError."""
    try:
        one = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the switch's settings: {error}") from None
    if not isinstance(one, dict):
        raise SettingsError("the switch's settings: must be an object like an entry of [[switches]]")
    way = one.pop("uplink", None)
    of_one: dict[str, Any] = {key: SCHEMA[key].default for key in SCHEMA if SCHEMA[key].spec.of == "switch"}
    [spec] = specs_of(replace(common, **of_one, uplink=[], switches=[one]))
    if way is None:
        return spec
    if not isinstance(way, dict) or way.keys() != {"port", "to"}:
        raise SettingsError(f"uplink = {way!r}: accepted is as {{ port = 3, to = 'spine' }}")
    return replace(spec, uplink=(as_port(way["port"]), str(way["to"])))


def trees_of(specs: Sequence[SwitchSpec]) -> Trees:
    """How they hang together. Raises SettingsError."""
    names = [spec.name for spec in specs]
    ways = {at: spec.uplink for at, spec in enumerate(specs) if spec.uplink}
    try:
        trees = Trees(names, {at: Uplink(port, names.index(parent)) for at, (port, parent) in ways.items()})
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if len(trees.roots) > MAX_AGGREGATORS:
        raise SettingsError(f"{len(trees.roots)} switches without a parent: accepted are up to {MAX_AGGREGATORS}")
    return trees


def other_changes(before: Settings, after: Settings) -> list[str]:
    """Keys of settings that differ and are not of switches."""
    return [key for key in SCHEMA if key not in _OF_SWITCHES and getattr(before, key) != getattr(after, key)]


def with_switches_of(other: Settings, settings: Settings) -> Settings:
    """These settings, but for what is of switches."""
    return replace(settings, **{key: getattr(other, key) for key in _OF_SWITCHES})
