# SPDX-License-Identifier: Apache-2.0
"""The command `token`, which makes a token and its entry for the users file."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer

from p4reduce_controller.tenants.access import Role
from p4reduce_controller.tenants.users import digest


def token(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    role: Annotated[str, typer.Option(help="Role of the user: operator, user or viewer.")] = "user",
    tenant: Annotated[
        str, typer.Option(help="Tenant that the user's jobs belong to. Default: a tenant with the user's name.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a token for a user.

    The first line is the token, which is shown only this once. The lines after it are for the users file, which holds
    only a digest of the token.
    """
    try:
        Role.named(role)
    except ValueError as error:
        typer.echo(f"p4reduce: --role: {error}", err=True)
        raise typer.Exit(1) from None
    new_token = f"p4r_{secrets.token_urlsafe(32)}"
    entry = {"token_sha256": digest(new_token), "role": role, **({"tenant": tenant} if tenant else {})}
    if as_json:
        typer.echo(json.dumps({"token": new_token, "users": {name: entry}}))
        return
    lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]  # a JSON string is a TOML string too
    typer.echo("\n".join([new_token, "", f"[users.{json.dumps(name)}]", *lines]))
