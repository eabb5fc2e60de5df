# SPDX-License-Identifier: Apache-2.0
"""The command `token`: makes one for a user, and what the users file has of it."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer

from p4reduce_controller.tenants.access import Role
from p4reduce_controller.tenants.users import digest


def token(
    name: Annotated[str, typer.Argument(help="The user.")],
    role: Annotated[str, typer.Option(help="operator, user or viewer.")] = "user",
    tenant: Annotated[str, typer.Option(help="Whose the user's jobs are; without it, a tenant of that name.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a token for a user. It is on the first line, and after that what to add to the users file, which has a
    digest alone: the token itself is shown once, here."""
    try:
        Role.named(role)
    except ValueError as error:
        typer.echo(f"p4reduce: --role: {error}", err=True)
        raise typer.Exit(1) from None
    made = f"p4r_{secrets.token_urlsafe(32)}"
    entry = {"token_sha256": digest(made), "role": role, **({"tenant": tenant} if tenant else {})}
    if as_json:
        typer.echo(json.dumps({"token": made, "users": {name: entry}}))
        return
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]  # such a text is TOML's, too
    typer.echo("\n".join([made, "", f"[users.{json.dumps(name)}]", *lines]))
