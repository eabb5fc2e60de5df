# SPDX-License-Identifier: Apache-2.0
"""Errors of requests: gRPC codes, and a google.rpc.Status with one p4.v1.Error for each update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import grpc
from finsy.proto import p4r, rpc_status
from grpc import StatusCode

SPACE = "ALL-sswitch-p4org"  # the error space that BMv2 names
DETAILS_KEY = "grpc-status-details-bin"


class Refused(Exception):
    """A refused request, or one refused update. `code` is the one that P4Runtime specifies."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UpdatesRefused(Refused):
    """A Write with refused updates. `errors` has an item for each update: None if it was done."""

    def __init__(self, errors: Sequence[Refused | None]) -> None:
        refused = [f"update {index}: {error.message}" for index, error in enumerate(errors) if error is not None]
        super().__init__(StatusCode.UNKNOWN, f"{len(refused)} of {len(errors)} updates refused; {refused[0]}")
        self.errors = tuple(errors)


def invalid(message: str) -> Refused:
    """Return an INVALID_ARGUMENT: the request contradicts itself or P4Info."""
    return Refused(StatusCode.INVALID_ARGUMENT, message)


def unsupported(message: str) -> Refused:
    """Return an UNIMPLEMENTED: P4Runtime has this feature, and the server lacks it."""
    return Refused(StatusCode.UNIMPLEMENTED, message)


def unavailable(message: str) -> Refused:
    """Return an UNAVAILABLE: the data plane is out of reach."""
    return Refused(StatusCode.UNAVAILABLE, message)


def message_of(error: Exception) -> str:
    """Return the message of a data plane's error. `str` puts that of a KeyError in quotes."""
    return str(error.args[0] if error.args else error)


def number(code: StatusCode) -> int:
    """Return the number of a gRPC code."""
    value: tuple[int, str] = code.value
    return value[0]


def details(refused: Refused) -> rpc_status.Status:
    """Return the status as BMv2 packs it: for a Write, it has a p4.v1.Error for every update, done or refused."""
    status = rpc_status.Status(code=number(refused.code), message=refused.message)
    if isinstance(refused, UpdatesRefused):
        for error in refused.errors:
            item = p4r.Error()
            if error is not None:
                item = p4r.Error(canonical_code=number(error.code), message=error.message, space=SPACE)
            status.details.add().Pack(item)
    return status


def abort(context: grpc.ServicerContext, refused: Refused) -> NoReturn:
    """End the call with the code, the message and the details."""
    context.set_trailing_metadata(((DETAILS_KEY, details(refused).SerializeToString()),))
    context.abort(refused.code, refused.message)
    raise AssertionError("abort raises")
