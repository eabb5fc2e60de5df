# SPDX-License-Identifier: Apache-2.0
"""Settings that are declared once, as fields of a dataclass.

The key in a file, the option on the command line, the help, the checks and the errors follow from the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

Scope = Literal["controller", "switch", "either"]

# Names of types for errors, in the terms of TOML.
_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text in quotes",
    list: "a list",
    dict: "a table",
}

_MOST_LISTED = 16  # keys that an error lists; if more are known, it says where they are listed


class SettingsError(Exception):
    """An error: a setting is not accepted. The message says which, and what would be accepted."""


@dataclass(frozen=True)
class Range:
    """The range from `low` to `high`, both included."""

    low: float
    high: float = math.inf
    unit: str = ""

    def __str__(self) -> str:
        low, high = (f"{limit:g}" if isinstance(limit, float) else str(limit) for limit in (self.low, self.high))
        return f"{low} or more" if self.high == math.inf else f"{low} to {high} {self.unit}".rstrip()


@dataclass(frozen=True)
class Spec:
    """The properties of a setting besides its name, its type and its default.

    `help`: the help of the option, with the default in place of `{default}`. Without it there is no option.
    `option_name`: the name of the option, if it differs from the key.
    `scope`: where the setting may be if a file has [[switches]] tables: "controller" outside them, "switch" in them,
    "either" in both places.
    `once`: whether the option is not repeatable, although its value is a list.
    `parse`: makes the value from the option's text; for a repeatable option, an element of the list or an item of the
    dict.
    `within`: the range of a number; None if every number is accepted.
    `choices`: the texts that are accepted; empty if every text is.
    """

    help: str = ""
    option_name: str = ""
    scope: Scope = "controller"
    once: bool = False
    parse: Callable[[str], Any] | None = None
    within: Range | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A setting of a dataclass."""

    key: str
    annotation: Any
    default: Any
    spec: Spec

    @property
    def kind(self) -> type[Any]:
        return type(self.default)

    @property
    def option(self) -> str:
        return f"--{(self.spec.option_name or self.key).replace('_', '-')}"

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
        if given is None or given is False or given == []:  # how typer passes options that are not given
            return None
        if self.spec.parse is None:
            return given
        if not self.repeated:
            return self.spec.parse(given)
        parsed = list(map(self.spec.parse, given))
        if self.kind is dict and len(dict(parsed)) < len(parsed):  # a key occurs twice
            raise SettingsError(f"{self.option} {', '.join(given)}: give each once")
        return self.kind(parsed)

    def checked(self, value: Any) -> Any:
        """Return the value with the type that the dataclass has for it. Raises SettingsError.

        A single text stands for a list of texts, and a whole number for a number.
        """
        if self.annotation == list[str] and isinstance(value, str):
            value = [value]
        if self.kind is float and type(value) is int:
            value = float(value)
        if not _has_type(value, self.annotation):
            raise SettingsError(f"{self.key} = {value!r}: must be {_described(self.annotation)}")
        within, choices = self.spec.within, self.spec.choices
        if within is not None and not within.low <= value <= within.high:
            raise SettingsError(f"{self.option} {value}: accepted are {within}")
        if choices and value not in choices:
            raise SettingsError(f"{self.option} {value}: accepted are {' or '.join(choices)}")
        return value


def _has_type(value: object, kind: Any) -> bool:
    if kind is Any:
        return True
    if type(value) is not (get_origin(kind) or kind):  # not isinstance, by which True would be an int
        return False
    elements = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_has_type(element, get_args(kind)[-1]) for element in elements)


def _described(kind: Any) -> str:
    *_, element = get_args(kind) or [Any]
    name = _TYPE_NAMES[get_origin(kind) or kind]
    return name if element is Any else f"{name}; each element must be {_described(element)}"


def setting(default: Any, help: str = "", **more: Any) -> Any:
    """Return a dataclass field that is a setting; the keywords are those of Spec."""
    metadata = {"spec": Spec(help, **more)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(schema: type) -> dict[str, Setting]:
    found = {}
    types = get_type_hints(schema)
    for item in fields(schema):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        found[item.name] = Setting(item.name, types[item.name], default, item.metadata["spec"])
    return found


def check(
    values: Mapping[str, Any],
    known: Mapping[str, Setting],
    where: str = "",
    also: Iterable[str] = (),
    elsewhere: str = "",
) -> dict[str, Any]:
    """Return the checked values by key. A key may also be written like its option, without the leading dashes.

    `where`: the file or table of the values, which errors name.
    `also`: keys that the caller has removed from `values`, as it handles them itself. Errors list them as known, too.
    `elsewhere`: a text that says where the known keys are listed, for errors if they are many.
    Raises SettingsError.
    """
    names = {setting.option.removeprefix("--").replace("-", "_"): key for key, setting in known.items()}
    checked: dict[str, Any] = {}
    unknown = []
    for written, value in values.items():
        plain = written.replace("-", "_")
        key = plain if plain in known else names.get(plain, "")
        if not key:
            unknown.append(written)
        elif key in checked:
            raise SettingsError(f"{where}: {written}: {key} is given twice")
        else:
            try:
                checked[key] = known[key].checked(value)
            except SettingsError as error:
                raise SettingsError(f"{where}: {error}" if where else str(error)) from None
    if unknown:
        every = [*also, *known]
        listed = f"known are {', '.join(every)}" if len(every) <= _MOST_LISTED else elsewhere
        raise SettingsError(f"{where}: unknown {', '.join(sorted(unknown))}{_suggestion(unknown, every)}; {listed}")
    return checked


def _suggestion(unknown: Iterable[str], known: list[str]) -> str:
    """Return a text that suggests similar known names, or ""."""
    similar = [name for one in unknown for name in get_close_matches(one.replace("-", "_"), known)]
    return f" (is {' or '.join(dict.fromkeys(similar))} meant?)" if similar else ""
