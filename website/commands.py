# SPDX-License-Identifier: Apache-2.0
"""The reference page of the command line: the text of `--help` of every command, from the same declarations."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from p4reduce.commands.cli import COMMANDS


def command(name: str) -> Any:
    """Return the click command that `p4reduce NAME` runs."""
    module, function = COMMANDS[name].target.split(":")
    called = getattr(import_module(module), function)
    if not isinstance(called, typer.Typer):
        alone = typer.Typer(add_completion=False)
        alone.command(help=COMMANDS[name].summary)(called)
        called = alone
    return get_command(called)


def walk(name: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command and its subcommands, each with the words that a user types for it."""
    yield name, one
    for below, other in sorted(getattr(one, "commands", {}).items()):
        if not other.hidden:
            yield from walk(f"{name} {below}", other)


def page() -> str:
    rows = [f"| [`p4reduce {name}`](#p4reduce-{name}) | {one.summary} |" for name, one in COMMANDS.items()]
    parts = ["# Command line\n", "| command | |\n|---|---|\n" + "\n".join(rows) + "\n"]
    for name, listed in COMMANDS.items():
        for typed, one in walk(f"p4reduce {name}", command(name)):
            parts.append(_part(typed, one, listed.extra if typed.count(" ") == 1 else ""))
    return "\n".join(parts)


def _part(typed: str, one: Any, extra: str) -> str:
    context = one.context_class(one, info_name=typed)
    usage = " ".join([typed, *one.collect_usage_pieces(context)])
    parts = [f"{'#' * min(1 + typed.count(' '), 4)} {typed}\n", f"```text\n{usage}\n```\n"]
    parts.append(_plain(one.help or "") + "\n")
    if extra:
        parts.append(f"Comes with `p4reduce[{extra}]`.\n")
    rows = [f"| `{what}` | {_plain(said)} |" for what, said in filter(None, _records(one, context))]
    if rows:
        parts.append("| option | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _records(one: Any, context: Any) -> Iterator[tuple[str, str] | None]:
    """Return the help records of arguments and options: how each is typed, and its text. None for hidden ones."""
    return (parameter.get_help_record(context) for parameter in one.params)


def _plain(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    for mark in ("|", "*", "_", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.replace("<", "&lt;").split())
