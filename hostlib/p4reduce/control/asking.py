# SPDX-License-Identifier: Apache-2.0
"""A single call to a controller, as commands make it: its reply, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from p4reduce.control import rpc
from p4reduce.control.channel import Tls, code_of, explain, open_channel
from p4reduce.errors import JoinError

_T = TypeVar("_T")
Metadata = tuple[tuple[str, str], ...]
ANSWER_TIMEOUT = 10.0  # seconds, for calls that the controller answers by itself
_CONNECT_TIMEOUT = 3.0  # seconds: a person waits for the command
_RETRY_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)  # another controller may serve


def ask(addresses: str, token: str | None, tls: Tls | None, call: Callable[[rpc.JobsStub, Metadata], _T]) -> _T:
    """Call `call` with a stub and the metadata for its methods, and return the result.

    `addresses`: HOST:PORT of the controller, or of several with commas between them: the one that serves answers.
    Raises JoinError, which names each address and its trouble.
    """
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    troubles = []
    for one in addresses.split(","):
        try:
            with open_channel(one.strip(), tls, connect=_CONNECT_TIMEOUT) as channel:
                return call(rpc.JobsStub(channel), metadata)
        except grpc.RpcError as error:
            troubles.append(explain(error, one.strip(), tls))
            if code_of(error) not in _RETRY_CODES:
                break
    raise JoinError("; ".join(troubles))
