# SPDX-License-Identifier: Apache-2.0
"""Measurements of the controller itself: how long jobs take to become ready, and how calls to it end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from p4reduce_controller.jobs.job import Job, State

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # upper limits in seconds


def serving(registry: CollectorRegistry, value: int) -> None:
    """Add the metric that is 1 for a controller that serves, and 0 for a standby."""
    gauge = Gauge("p4reduce_serving", "Whether this controller serves, or stands by", registry=registry)
    gauge.set(value)


class Telemetry(grpc.aio.ServerInterceptor):
    """The measurements, in `registry`. As an interceptor of the server it counts calls, including refused ones."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        seconds = partial(Histogram, buckets=_BUCKETS, registry=self.registry)
        text = "Time from the last rank's HELLO until the job is ready on its switches"
        self._install = seconds("p4reduce_install_seconds", text)
        self._join = seconds("p4reduce_join_seconds", "Time from a job's first join until it is ready")
        text = "Time for which ranks paused their operations while their job's slots changed, by reason"
        self._moves = seconds("p4reduce_move_seconds", text, ["why"])
        text = "Calls of the control service that have ended, by gRPC's code"
        self._calls = Counter("p4reduce_rpcs", text, ["method", "code"], registry=self.registry)
        serving(self.registry, 1)
        self._installing: dict[int, float] = {}  # the start, by job number

    def installing(self, job: Job, now: float) -> None:
        self._installing[job.number] = now

    def installed(self, job: Job, now: float) -> None:
        """Record that a job is installed, or will not be."""
        since = self._installing.pop(job.number, now)
        if job.state is State.READY:
            self._install.observe(now - since)
            self._join.observe(now - job.started)

    def moved(self, why: str, seconds: float) -> None:
        self._moves.labels(why).observe(seconds)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return handler
        kind = "stream_stream" if handler.request_streaming and handler.response_streaming else "unary_unary"
        behaviour, method = getattr(handler, kind), str(details.method).rpartition("/")[2]

        async def counted(request: Any, context: Any) -> Any:
            code = grpc.StatusCode.UNKNOWN
            try:
                answer = await behaviour(request, context)
                code = grpc.StatusCode.OK
                return answer
            except asyncio.CancelledError:  # the caller has gone
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                self._calls.labels(method, _code(context, code).name).inc()

        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return make_handler(counted, handler.request_deserializer, handler.response_serializer)


def _code(context: Any, otherwise: grpc.StatusCode) -> grpc.StatusCode:
    """Return the code that the handler has set, or else `otherwise`."""
    known = context.code()
    return known if isinstance(known, grpc.StatusCode) and known is not grpc.StatusCode.OK else otherwise
