# SPDX-License-Identifier: Apache-2.0
"""Options of commands: the controller that a command calls, and the settings of a controller."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from p4reduce.commands.reaching import TlsCa, TokenFile, tls_of, token_of, with_certificate_options, with_parameters
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.asking import ANSWER_TIMEOUT, ask
from p4reduce.control.channel import DEFAULT_CONTROLLER
from p4reduce.errors import JoinError
from p4reduce_controller.base.schema import Setting

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Controller = Annotated[
    str,
    typer.Option(
        "--controller",
        help="HOST:PORT of the controller. Separate several controllers with commas.",
        envvar="P4REDUCE_CONTROLLER",
    ),
]


_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class Access:
    """The way to a controller: its address, token and certificates."""

    def __init__(self, controller: str, token_file: Path | None, tls_ca: Path | None) -> None:
        """Read the files. End the command if they cannot be used."""
        self.controller = controller
        self._token_file = token_file
        try:
            token_of(token_file)  # so that a file that cannot be used is an error now
            self.tls = tls_of(tls_ca)
        except (JoinError, ValueError) as error:
            fail(str(error))

    @property
    def token(self) -> str | None:
        """The token from the file, read anew, since it may be replaced while the command runs. Raises ValueError."""
        return token_of(self._token_file)

    def call(self, method: str, request: Message, timeout: float = ANSWER_TIMEOUT) -> Any:
        """Return the reply. If there is none, end the command with a message."""
        try:
            return ask(
                self.controller,
                self.token,
                self.tls,
                lambda stub, metadata: getattr(stub, method)(request, timeout=timeout, metadata=metadata),
            )
        except (JoinError, ValueError) as error:
            fail(str(error))

    def status(self) -> pb.StatusReply:
        reply: pb.StatusReply = self.call("Status", pb.StatusRequest())
        return reply


def reaches_controller(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options to reach a controller in place of its parameter `access`."""

    @wraps(command)
    def called(*, controller: str, token_file: Path | None, tls_ca: Path | None, **given: Any) -> None:
        command(access=Access(controller, token_file, tls_ca), **given)

    options = {
        "controller": (_Controller, DEFAULT_CONTROLLER),
        "token_file": (TokenFile, None),
        "tls_ca": (TlsCa, None),
    }
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    return with_certificate_options(with_parameters(called, command, "access", added))


def plain(message: Message) -> dict[str, Any]:
    """Return the message with all its fields as JSON values."""
    values: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _restore_numbers(message.DESCRIPTOR, values)
    return values


def _restore_numbers(descriptor: Any, values: dict[str, Any]) -> None:
    """Replace the strings that Protobuf writes for 64-bit numbers by numbers.

    descriptor: the message's, of any implementation of Protobuf.
    """
    for field in descriptor.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].cpp_type in _LONG:
                values[field.name] = {key: int(one) for key, one in value.items()}
        elif field.message_type is not None:
            for one in value if isinstance(value, list) else [value]:
                _restore_numbers(field.message_type, one)
        elif field.cpp_type in _LONG:
            values[field.name] = [int(one) for one in value] if isinstance(value, list) else int(value)


def fail(message: str, status: int = 1) -> NoReturn:
    """End the command with an error and an exit status."""
    typer.echo(f"p4reduce: {message}", err=True)
    raise typer.Exit(status)


def with_options(schema: Mapping[str, Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the command's parameter `options` by an option for each setting.

    `options` then has the options' values by key, as `Setting.of_option` expects them.
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
    # typer makes an option of a list repeatable. Other lists are texts, which `Setting.of_option` parses.
    kind = list[str] if setting.repeated else str if setting.kind is list else setting.kind
    option = typer.Option(setting.option, help=setting.help)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(setting.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
