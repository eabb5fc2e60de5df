# SPDX-License-Identifier: Apache-2.0
"""The drivers' results (`bf_status_t` of bf_types.h), and the errors that the gRPC server makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import grpc


class BfStatus(Enum):
    """A result of a driver: its text (`bf_err_str`), and the code that `to_grpc_status` gives it."""

    NOT_READY = "Not ready", grpc.StatusCode.UNAVAILABLE
    NO_SYS_RESOURCES = "No system resources", grpc.StatusCode.RESOURCE_EXHAUSTED
    INVALID_ARG = "Invalid arguments", grpc.StatusCode.INVALID_ARGUMENT
    ALREADY_EXISTS = "Already exists", grpc.StatusCode.ALREADY_EXISTS
    HW_COMM_FAIL = "HW access fails", grpc.StatusCode.UNKNOWN
    OBJECT_NOT_FOUND = "Object not found", grpc.StatusCode.NOT_FOUND
    NO_SPACE = "Not enough space", grpc.StatusCode.RESOURCE_EXHAUSTED
    UNEXPECTED = "Unexpected error", grpc.StatusCode.UNKNOWN
    NOT_SUPPORTED = "Operation not supported", grpc.StatusCode.UNIMPLEMENTED
    IN_USE = "In use", grpc.StatusCode.UNAVAILABLE
    NOT_IMPLEMENTED = "Object not implemented", grpc.StatusCode.UNIMPLEMENTED

    @property
    def code(self) -> int:
        """The number of the gRPC code."""
        return int(self.value[1].value[0])


class Failure(Exception):
    """A driver refuses a call. The server adds to the result what it did."""

    def __init__(self, status: BfStatus) -> None:
        super().__init__(status.value[0])
        self.status = status


class Refusal(Exception):
    """An error as a client sees it, in the form of the server's macro `check_and_return`."""

    def __init__(self, status: BfStatus, text: str) -> None:
        super().__init__(f"{text} {status.value[0]}")
        self.status = status
        self.message = str(self)


@contextmanager
def explained(text: str) -> Iterator[None]:
    """Turn a driver's failure into the error of what the server did meanwhile."""
    try:
        yield
    except Failure as failure:
        raise Refusal(failure.status, text) from None
