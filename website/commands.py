# SPDX-License-Identifier: Apache-2.0
"""The reference page of the command line: the text of `--help` of every command, from the same declarations."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.cli import get_docs_for_click
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


def page() -> str:
    rows = [f"| [`p4reduce {name}`](#p4reduce-{name}) | {one.summary} |" for name, one in COMMANDS.items()]
    parts = ["# Command line\n", "| command | |\n|---|---|\n" + "\n".join(rows) + "\n"]
    for name, listed in COMMANDS.items():
        one = command(name)
        context = one.context_class(one, info_name=name)
        text = get_docs_for_click(
            obj=one, ctx=context, indent=1, name=name, call_prefix="p4reduce", title=f"p4reduce {name}"
        )
        extra = f"\n\nIt needs the extra `p4reduce[{listed.extra}]`.\n\n" if listed.extra else "\n\n"
        parts.append(text.replace("\n\n", extra, 1))
    return "\n".join(parts)
