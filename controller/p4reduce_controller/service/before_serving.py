# SPDX-License-Identifier: Apache-2.0
"""What callers hear of a controller that has its port and does not serve yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from p4reduce_controller.tenants.gate import Refused, refusing


class BeforeServing(grpc.aio.ServerInterceptor):
    """Refuses every call but those of ranks, which the service itself answers."""

    def __init__(self, why: Callable[[], str]) -> None:
        """`why`: why it does not serve yet, or ""."""
        self._why = why

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None or details.method.endswith("/Session") or not (why := self._why()):
            return handler
        refused = Refused(grpc.StatusCode.UNAVAILABLE, why)
        return refusing(handler, lambda _: refused, _nobody_is_told)


async def _nobody_is_told(_: Refused, __: str) -> None:
    pass
