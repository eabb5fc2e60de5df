# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry traces of joins, from a job's first join until it is ready.

They are off unless an exporter is configured: OTEL_TRACES_EXPORTER names an installed one ("otlp", "console").

    join                       from the first rank's join until the job is ready, or aborted
      gathering                ranks join, as events, and are heard by the switches
      installing
        switch                 for each: its entries, and
          reset                its slots
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.observability.logs import about

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

EXPORTER = "OTEL_TRACES_EXPORTER"
EXTRA = 'pip install "p4reduce[tracing]"'

_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}  # names of exporters by protocol


class Traces:
    """The traces of jobs, which are identified by number. Times are the system clock's.

    Without a `provider`, it does nothing.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer: Tracer | None = provider.get_tracer("p4reduce_controller") if provider else None
        self._joins: dict[int, dict[str, Span]] = {}

    def joined(self, job: Job, rank: int) -> None:
        if self._tracer is None:
            return
        if job.number not in self._joins:
            self._begin(self._tracer, job)
        spans = self._joins[job.number]
        if "gathering" in spans:
            spans["gathering"].add_event("joined", {"rank": rank})

    def installing(self, job: Job) -> None:
        if self._tracer is not None and (spans := self._joins.get(job.number)):
            if gathering := spans.pop("gathering", None):
                gathering.end()
            spans["installing"] = self._child(spans["join"], "installing")

    def settled(self, number: int, error: str = "") -> None:
        """End the spans of that job, which is ready, or was aborted for the reason in `error`."""
        spans = self._joins.pop(number, {})
        for name in ("gathering", "installing", "join"):
            if span := spans.get(name):
                if error:
                    _fail(span, error)
                span.end()

    def keep(self, jobs: Sequence[Job]) -> None:
        """Begin spans of jobs that have come from the queue, and end those of jobs that are gone.

        `jobs`: those that have not ended.
        """
        for job in jobs if self._tracer is not None else ():
            if job.state is State.GATHERING and job.number not in self._joins:
                for rank in list(job.members):
                    self.joined(job, rank)
        for number in self._joins.keys() - {job.number for job in jobs}:
            self.settled(number, "it ended before it was ready")

    @contextmanager
    def step(self, job: Job, name: str, **attributes: str) -> Iterator[None]:
        """Record a step of the job's installation. A step within another, in the same task, becomes its child."""
        spans = self._joins.get(job.number, {})
        if self._tracer is None or "installing" not in spans:
            yield
            return
        from opentelemetry import context, trace

        current = trace.get_current_span()
        parent = current if current.is_recording() else spans["installing"]
        span = self._child(parent, name, **attributes)
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            _fail(span, str(error) or type(error).__name__)
            raise
        finally:
            context.detach(token)
            span.end()

    def close(self) -> None:
        """Send the spans that have not been sent."""
        if self._provider is not None:
            self._provider.shutdown()

    def _begin(self, tracer: Tracer, job: Job) -> None:
        attributes = {f"p4reduce.{name}": value for name, value in about(job).items()}
        span = tracer.start_span("join", attributes={**attributes, "p4reduce.ranks": job.world_size})
        self._joins[job.number] = {"join": span, "gathering": self._child(span, "gathering")}

    def _child(self, parent: Span, name: str, **attributes: str) -> Span:
        from opentelemetry import trace

        assert self._tracer is not None
        prefixed = {f"p4reduce.{key}": value for key, value in attributes.items()}
        return self._tracer.start_span(name, trace.set_span_in_context(parent), attributes=prefixed)


def configured() -> Traces:
    """Return the traces that the environment configures. Raises SettingsError if their exporter is not installed."""
    name = os.environ.get(EXPORTER, "").strip()
    if name in ("", "none"):
        return Traces()
    try:
        sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
        resource = import_module("opentelemetry.sdk.resources").Resource
    except ImportError:
        raise SettingsError(f"{EXPORTER}={name} needs OpenTelemetry: {EXTRA}") from None
    exporter = _exporter(name)
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "p4reduce-controller"}
    provider = sdk.TracerProvider(resource=resource.create(named))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return Traces(provider)


def _exporter(name: str) -> Any:
    known = {one.name: one for one in metadata.entry_points(group="opentelemetry_traces_exporter")}
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    found = known.get(_OTLP.get(protocol, name) if name == "otlp" else name)
    if found is None:
        accepted = ", ".join(sorted({*known, "otlp", "none"}))
        raise SettingsError(f"{EXPORTER}={name}: no such exporter is installed; accepted are {accepted}; {EXTRA}")
    return found.load()()


def _fail(span: Span, error: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, error))
