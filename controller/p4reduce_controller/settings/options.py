# SPDX-License-Identifier: Apache-2.0
"""The settings as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from p4reduce.commands.reaching import with_parameters
from p4reduce_controller.base.schema import Setting


def with_options(schema: Mapping[str, Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command, with an option for each setting in the place of its parameter `options`.

    It is given their texts and numbers there by their keys, as `Setting.of_option` takes them.
    """
    parameters = [_parameter(setting) for setting in schema.values() if setting.spec.help]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:
            options = {parameter.name: given.pop(parameter.name) for parameter in parameters}
            command(options=options, **given)

        return with_parameters(called, command, "options", parameters)

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    kind = list[str] if setting.repeated else str if setting.kind is list else setting.kind
    option = typer.Option(setting.option, help=setting.help)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
