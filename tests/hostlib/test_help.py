# SPDX-License-Identifier: Apache-2.0
"""The help of all commands, as it comes through rich's markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rich.text import Text

from p4reduce.commands.cli import COMMANDS, load


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Of a command, its parameters and those below it, as `path` says."""
    yield path, command.help or ""
    for one in command.params:
        yield f"{path} {one.name}", getattr(one, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_a_help_is_taken_for_markup(name: str) -> None:
    pytest.importorskip(COMMANDS[name].target.partition(":")[0])
    for path, text in helps(load(name), name):
        assert Text.from_markup(text).plain == text.replace("\\[", "["), path
