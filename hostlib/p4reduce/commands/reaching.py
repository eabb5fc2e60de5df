# SPDX-License-Identifier: Apache-2.0
"""Options by which commands reach a controller."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from p4reduce.control.channel import Tls
from p4reduce.control.diagnostics import read_token
from p4reduce.errors import JoinError

TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the controller's token.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", help="Use TLS. PEM file with the certificate authorities to trust.", envvar="P4REDUCE_TLS_CA"
    ),
]

_OPTIONS = {
    "P4REDUCE_TLS_CERT": ("tls_cert", "PEM file with the client certificate, if the controller asks for one."),
    "P4REDUCE_TLS_KEY": ("tls_key", "PEM file with the private key of --tls-cert."),
}


def with_certificate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options --tls-cert and --tls-key, which `tls_of` below reads."""

    @wraps(command)
    def called(**given: Any) -> None:
        files = {variable: given.pop(name) for variable, (name, _) in _OPTIONS.items()}
        before = {variable: os.environ.get(variable) for variable in _OPTIONS}
        os.environ.update({variable: str(file) for variable, file in files.items() if file is not None})
        try:
            command(**given)
        finally:
            for variable, file in before.items():
                if file is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = file

    added = [_parameter(variable, name, help) for variable, (name, help) in _OPTIONS.items()]
    every = inspect.signature(command, eval_str=True).parameters
    return with_parameters(called, command, "tls_ca", [every["tls_ca"], *added])


def with_parameters(
    called: Callable[..., None], command: Callable[..., None], name: str, given: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Give `called` the signature of `command`, in which `given` replace the parameter `name`; return it for typer."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    every = [new for one in own for new in (given if one.name == name else [one])]
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in every]
    )
    called.__annotations__ = {one.name: one.annotation for one in every}
    return called


def tls_of(ca: Path | None) -> Tls | None:
    """Return the TLS files that options or the environment name; None for no TLS. Raises JoinError."""
    cert, key = (os.environ.get(variable) or None for variable in _OPTIONS)
    if (cert is None) != (key is None):
        raise JoinError("--tls-cert and --tls-key (P4REDUCE_TLS_CERT, P4REDUCE_TLS_KEY): give both or neither")
    return Tls(ca, cert=cert, key=key) if ca is not None or cert is not None else None


def token_of(file: Path | None) -> str | None:
    """Return the token in the file, or else that of P4REDUCE_TOKEN. Raises ValueError."""
    return read_token(file) if file is not None else os.environ.get("P4REDUCE_TOKEN") or None


def _parameter(variable: str, name: str, help: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=help, envvar=variable)
    kind = Annotated[Path | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
