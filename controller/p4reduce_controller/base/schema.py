# SPDX-License-Identifier: Apache-2.0
"""Settings that are declared once, as fields of a dataclass.

The key in a file, the option on the command line, the help, the checks and the errors follow from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

Scope = Literal["controller", "switch", "either"]


# Names of types in errors, as TOML writes their values.
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    list: "a list",
    dict: "a table",
}


_MOST_LISTED = 16


class SettingsError(Exception):
    """An error: a setting is not accepted. The message says which, and what would be accepted."""


@dataclass(frozen=True)
class Range:
    """The range from `low` to `high`, both included. `said`: the text for errors."""

    low: float
    high: float
    said: str


@dataclass(frozen=True)
class Spec:
    """The properties of a setting besides its name, its type and its default.

    `of`: whether it belongs to the whole controller, to a single switch, or to either. A switch's setting may be in
    a [[switches]] table, and not beside these tables.
    `help`: the help of the option, with the default in place of `{default}`. Without it there is no option.
    `called`: the name of the option, if it differs from the key.
    `read`: makes the value from the option's text; for a repeatable option, an element of the list or an item of the
    dict.
    `once`: whether the option is not repeatable, although its value is a list.
    `alone`: whether a single element in a file may be written without a list.
    """

    help: str = ""
    called: str = ""
    of: Scope = "controller"
    items: type | None = None
    once: bool = False
    alone: bool = False
    read: Callable[[str], Any] | None = None
    within: Range | None = None


@dataclass(frozen=True)
class Setting:
    """A setting of a dataclass."""

    key: str
    default: Any
    spec: Spec

    @property
    def kind(self) -> type[Any]:
        return type(self.default)

    @property
    def option(self) -> str:
        return f"--{(self.spec.called or self.key).replace('_', '-')}"

    @property
    def repeated(self) -> bool:
        """Whether its option may be given several times."""
        return self.kind in (list, dict) and not self.spec.once

    @property
    def help(self) -> str:
        default = self.default
        if isinstance(default, list):
            default = ",".join(map(str, default))
        return self.spec.help.replace("{default}", f"{default:g}" if isinstance(default, float) else str(default))

    def of_option(self, given: Any) -> Any:
        """Return the value that the option has on the command line; None if it is not given. Raises SettingsError."""
        if given is None or given is False or given == []:
            return None
        if self.spec.read is None:
            return given
        if not self.repeated:
            return self.spec.read(given)
        read = list(map(self.spec.read, given))
        if self.kind is dict and len(dict(read)) < len(read):
            raise SettingsError(f"{self.option} {', '.join(given)}: give each once")
        return self.kind(read)

    def checked(self, value: Any) -> Any:
        """Return the value in the form of the dataclass. Raises SettingsError."""
        if self.spec.alone and isinstance(value, str):
            value = [value]
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise SettingsError(f"{self.key} = {value!r}: must be {self._accepted()}")
        items = self.spec.items
        elements = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if items is not None and not all(type(element) is items for element in elements):
            raise SettingsError(f"{self.key} = {value!r}: must be {self._accepted()}")
        within = self.spec.within
        if within is not None and not within.low <= value <= within.high:
            raise SettingsError(f"{self.option} {value}: {within.said}")
        return value

    def _accepted(self) -> str:
        items = self.spec.items
        return _WORDS[self.kind] + (f"; each element must be {_WORDS[items]}" if items is not None else "")


def setting(default: Any, help: str = "", **more: Any) -> Any:
    """Return a dataclass field that is a setting; the keywords are those of Spec."""
    metadata = {"spec": Spec(help, **more)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(schema: type) -> dict[str, Setting]:
    found = {}
    for item in fields(schema):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        found[item.name] = Setting(item.name, default, item.metadata["spec"])
    return found


def check(
    values: Mapping[str, Any],
    known: Mapping[str, Setting],
    where: str = "",
    also: Iterable[str] = (),
    elsewhere: str = "",
) -> dict[str, Any]:
    """Return the values by key, checked. Raises SettingsError, which names the key and `where` in a file it is.

    A key may also be written like its option, without the leading dashes.

    `also`: more keys that errors list as known.
    `elsewhere`: says where the known keys are listed, if they are many.
    """
    names = {setting.option.removeprefix("--").replace("-", "_"): key for key, setting in known.items()}
    named: dict[str, Any] = {}
    strange = []
    for written, value in values.items():
        plain = written.replace("-", "_")
        key = plain if plain in known else names.get(plain, "")
        if not key:
            strange.append(written)
        elif key in named:
            raise SettingsError(f"{where}: {written}: {key} is given twice")
        else:
            try:
                named[key] = known[key].checked(value)
            except SettingsError as error:
                raise SettingsError(f"{where}: {error}" if where else str(error)) from None
    if strange:
        every = [*also, *known]
        listed = f"known are {', '.join(every)}" if len(every) <= _MOST_LISTED else elsewhere
        raise SettingsError(f"{where}: unknown {', '.join(sorted(strange))}{_meant(strange, every)}; {listed}")
    return named


def _meant(strange: Iterable[str], known: list[str]) -> str:
    """Return a suggestion of known names that are similar, or ""."""
    near = [near for one in strange for near in get_close_matches(one.replace("-", "_"), known)]
    return f" (is {' or '.join(dict.fromkeys(near))} meant?)" if near else ""
