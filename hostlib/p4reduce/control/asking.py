# SPDX-License-Identifier: Apache-2.0
"""One question to a controller, as commands ask them, and its answer or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from p4reduce.control import rpc
from p4reduce.control.channel import Tls, code_of, explain, open_channel
from p4reduce.errors import JoinError

_T = TypeVar("_T")
Metadata = tuple[tuple[str, str], ...]
ANSWER_TIMEOUT = 10.0  # seconds, for what the controller knows by itself
_CONNECT = 3.0  # seconds: people wait
_ELSEWHERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)  # another controller may serve


def ask(addresses: str, token: str | None, tls: Tls | None, call: Callable[[rpc.JobsStub, Metadata], _T]) -> _T:
    """What `call` returns, which is given a stub and the metadata to call it with.

    `addresses`: HOST:PORT of the controller, or of several with commas, of which the one that serves answers. Raises
    JoinError, in words.
    """
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    troubles = []
    for one in addresses.split(","):
        try:
            with open_channel(one.strip(), tls, connect=_CONNECT) as channel:
                return call(rpc.JobsStub(channel), metadata)
        except grpc.RpcError as error:
            troubles.append(explain(error, one.strip(), tls))
            if code_of(error) not in _ELSEWHERE:
                break
    raise JoinError("; ".join(troubles))
