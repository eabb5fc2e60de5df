# SPDX-License-Identifier: Apache-2.0
"""Switches as the settings describe them, and the changes that operators have made to them by command.

The changes are kept, so that a later controller finds them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.p4runtime.switch_config import SwitchConfig, addresses_of, check_addresses, check_groups
from p4reduce_controller.settings.settings import SCHEMA, Settings
from p4reduce_controller.settings.texts import as_uplinks

log = logging.getLogger(__name__)

_OF_SWITCHES = {"switches", "uplink", "spare"} | {key for key, one in SCHEMA.items() if one.spec.scope == "switch"}


def specs_of(settings: Settings) -> list[SwitchConfig]:
    """Return the configurations of all switches in the settings. Raises SettingsError."""
    uplinks, spares, configs = settings.uplinks(), settings.spares(), settings.switch_configs()
    settings.switch_tls()
    specs = [
        replace(config, name=name, uplinks=ups, spare=name in spares)
        for config, (name, ups) in zip(configs, uplinks.items(), strict=True)
    ]
    check_addresses(specs, addresses_of(specs))
    for spec in specs:
        check_groups(spec)
    return specs


def spec_of(text: str, common: Settings) -> SwitchConfig:
    """Return the configuration in a JSON object that has the keys of a [[switches]] entry. Raises SettingsError.

    `common`: the settings of the controller.
    """
    try:
        one = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the switch's settings: {error}") from None
    if not isinstance(one, dict):
        raise SettingsError("the switch's settings: must be an object like an entry of [[switches]]")
    uplink = one.pop("uplink", None)
    of_one: dict[str, Any] = {key: SCHEMA[key].default for key in SCHEMA if SCHEMA[key].spec.scope == "switch"}
    [spec] = specs_of(replace(common, **of_one, uplink=[], spare=[], switches=[one]))
    if uplink is not None:
        spec = replace(spec, uplinks=as_uplinks(uplink))
        check_groups(spec)
    return spec


def other_changes(before: Settings, after: Settings) -> list[str]:
    """Return the keys of settings that differ and do not belong to switches."""
    return [key for key in SCHEMA if key not in _OF_SWITCHES and getattr(before, key) != getattr(after, key)]


def with_switches_of(other: Settings, settings: Settings) -> Settings:
    """Return `settings` with the keys that belong to switches taken from `other`."""
    return replace(settings, **{key: getattr(other, key) for key in _OF_SWITCHES})


@dataclass(frozen=True)
class Changes:
    """The changes to the switches of the settings.

    `added`: switches that are not in the settings.
    `removed`: removed switches that are still in the settings, as the settings described them.
    `leaving`: switches that are removed as soon as no job needs them.
    `draining`: names of switches.
    `replaced`: switches that are leaving too, while others already have their names.
    """

    added: tuple[SwitchConfig, ...] = ()
    removed: tuple[SwitchConfig, ...] = ()
    leaving: tuple[SwitchConfig, ...] = ()
    draining: frozenset[str] = frozenset()
    replaced: tuple[SwitchConfig, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the changes as JSON values."""
        every = {"added": self.added, "removed": self.removed, "leaving": self.leaving, "replaced": self.replaced}
        return {key: [written(spec) for spec in specs] for key, specs in every.items()} | {
            "draining": sorted(self.draining)
        }

    def begin_with(self, configured: Sequence[SwitchConfig]) -> InitialSwitches:
        """Return the switches to begin with. Raises ValueError if new jobs would have none.

        `configured`: the switches of the settings.

        Where two switches cannot exist together, one that is leaving has precedence, because jobs may run there. Then
        come the switches of the settings, then those of `added`. A removed switch comes back if the settings now
        describe it differently.
        """
        specs = list(self.leaving)
        retained = [one for one in self.replaced if one not in configured or one in self.removed]
        waiting = []
        for spec in [*(one for one in configured if one not in self.removed), *self.added]:
            same = [other for other in specs if other.name == spec.name or _collide(other, spec)]
            if spec in specs:
                continue
            if any(other in self.leaving for other in same) or any(_collide(other, spec) for other in retained):
                waiting.append(spec)
            elif same:
                log.warning("the switch %s is ignored: %s of the settings has taken its place", spec.name, same[0].name)
            else:
                specs.append(spec)
        while later := [one for one in specs if one not in self.leaving and _is_below(one, waiting, specs)]:
            waiting += later
            specs = [one for one in specs if one not in later]
        while orphans := [one for one in specs if one.uplinks and not one.uplinks_among(addresses_of(specs))]:
            specs.remove(orphans[0])
            if orphans[0] in self.leaving:
                retained.append(orphans[0])
            else:
                log.warning("the switch %s is ignored: its parent is no longer a switch", orphans[0].name)
                configured = [one for one in configured if one != orphans[0]]
        if not specs:
            names = ", ".join(spec.name for spec in waiting)
            raise ValueError(
                f"fabric: {names or 'all'} of the settings wait until jobs have left the switches in their place"
            )
        return InitialSwitches(specs, configured, waiting, self.draining, self.leaving, retained, self.replaced)


@dataclass(frozen=True)
class InitialSwitches:
    """The switches that a controller begins with.

    `configured`: the switches of the settings, without those whose parent is not a switch.
    `waiting`: switches that wait until others with their names or addresses are gone, or whose parent waits.
    `draining`: names of switches.
    `retained`: more switches, only for jobs that already run there. If they are also in `replaced`, others have their
    names.
    """

    specs: Sequence[SwitchConfig]
    configured: Sequence[SwitchConfig]
    waiting: Sequence[SwitchConfig] = ()
    draining: Collection[str] = frozenset()
    leaving: Sequence[SwitchConfig] = ()
    retained: Sequence[SwitchConfig] = ()
    replaced: Sequence[SwitchConfig] = ()


def changes_from(kept: object, common: Settings) -> Changes:
    """Return the changes that `to_json` of an earlier controller returned; `kept` may be {}. Raises ValueError."""
    if not isinstance(kept, dict):
        raise ValueError("fabric: must be an object")

    def specs(key: str) -> tuple[SwitchConfig, ...]:
        return tuple(spec_of(json.dumps(one), common) for one in _list_of(dict, kept, key))

    try:
        draining = frozenset(_list_of(str, kept, "draining"))
        return Changes(specs("added"), specs("removed"), specs("leaving"), draining, specs("replaced"))
    except SettingsError as error:
        raise ValueError(f"fabric: {error}") from None


def written(config: SwitchConfig) -> dict[str, Any]:
    """Return the switch as a [[switches]] entry, from which `spec_of` makes the same configuration.

    It does not include `drop_rate`, which belongs to the whole controller.
    """
    one: dict[str, Any] = {
        "name": config.name,
        "switch": config.target,
        "address": [str(config.address), *config.more_addresses],
        "mac": [config.address.mac],
        "device_id": config.device_id,
        "ports": list(config.ports),
        "lag": [list(group) for group in config.lags],
        "hosts": dict(config.hosts),
        "routes": [
            {"destination": str(route.destination), "port": route.port, "next_hop_mac": route.next_hop_mac}
            for route in config.routes
        ],
        "hello_rate": config.hello_rate,
    }
    if uplinks := [{"port": port, "to": to} for port, to in config.uplinks]:
        one["uplink"] = uplinks[0] if len(uplinks) == 1 else uplinks
    if config.spare:
        one["spare"] = True
    return one


def _names(specs: Iterable[SwitchConfig]) -> set[str]:
    return {spec.name for spec in specs}


def _is_below(one: SwitchConfig, waiting: Sequence[SwitchConfig], specs: Sequence[SwitchConfig]) -> bool:
    """Return whether a parent is among `waiting` and not among `specs`."""
    return not one.parents.isdisjoint(_names(waiting) - _names(specs))


def _collide(one: SwitchConfig, other: SwitchConfig) -> bool:
    """Return whether two switches cannot exist together: they have one P4Runtime server, or one address for workers."""
    return one.target == other.target or one.address == other.address


def _list_of(kind: type, kept: dict[str, Any], key: str) -> list[Any]:
    found = kept.get(key, [])
    if not isinstance(found, list) or not all(type(one) is kind for one in found):
        raise ValueError(f"fabric: {key}: must be a list of {'strings' if kind is str else 'objects'}")
    return found
