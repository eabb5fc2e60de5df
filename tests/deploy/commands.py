# SPDX-License-Identifier: Apache-2.0
"""Checks of the calls of p4reduce in deploy/: the command line accepts them, and their settings files are valid."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from p4reduce.commands.cli import COMMANDS
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.settings.settings import SCHEMA, Settings, load

DEPLOY = Path(__file__).parents[2] / "deploy"


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of `p4reduce WORDS`, by their names. Raises click's UsageError for what is not accepted."""
    module, function = COMMANDS[words[0]].target.split(":")
    called = getattr(import_module(module), function)
    alone = typer.Typer()
    alone.command()(called)
    context = typer.main.get_command(alone).make_context(words[0], list(words[1:]))
    return dict(context.params)


def settings_of(config: Path, words: Sequence[str]) -> Settings:
    """Return the settings of `p4reduce controller WORDS` with that file. Raises SettingsError for wrong ones."""
    given = {key: value for key, value in parsed(words).items() if key in SCHEMA and value not in (None, ())}
    settings = load(config, {key: SCHEMA[key].of_option(value) for key, value in given.items()})
    settings.switch_configs()
    settings.uplinks()
    if not settings.switch_ca:
        raise SettingsError("switches are on other hosts")
    return settings


def words_of(line: str) -> list[str]:
    return shlex.split(line.replace("\\\n", " "))
