# SPDX-License-Identifier: Apache-2.0
"""Switches as settings describe them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import SCHEMA, Settings
from p4reduce_controller.settings.texts import as_uplink

_OF_SWITCHES = {"switches", "uplink"} | {key for key, one in SCHEMA.items() if one.spec.of == "switch"}


def specs_of(settings: Settings) -> list[SwitchConfig]:
    """All of them. Raises SettingsError."""
    trees, configs = settings.trees(), settings.switch_configs()
    settings.switch_tls()
    parents = {at: (uplink.port, trees.names[uplink.parent]) for at, uplink in trees.uplinks.items()}
    return [replace(one, name=trees.names[at], uplink=parents.get(at)) for at, one in enumerate(configs)]


def spec_of(text: str, common: Settings) -> SwitchConfig:
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
    return spec if way is None else replace(spec, uplink=as_uplink(way))


def other_changes(before: Settings, after: Settings) -> list[str]:
    """Keys of settings that differ and are not of switches."""
    return [key for key in SCHEMA if key not in _OF_SWITCHES and getattr(before, key) != getattr(after, key)]


def with_switches_of(other: Settings, settings: Settings) -> Settings:
    """These settings, but for what is of switches."""
    return replace(settings, **{key: getattr(other, key) for key in _OF_SWITCHES})
