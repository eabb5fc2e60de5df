# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.observability.tracing import Traces, configured
from p4reduce_controller.switches.aggregator import SwitchError
from tests.support.controller.running import Running, Starter
from tests.support.waiting import wait_until

trace = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def spans() -> object:
    return memory.InMemorySpanExporter()


@pytest.fixture
def traced(start: Starter, spans: object) -> Running:
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    return start(Running, switches=2, traces=Traces(provider))


def test_a_join_is_one_trace_down_to_each_switch(traced: Running, spans: memory.InMemorySpanExporter) -> None:
    traced.job(2, job="traced")
    wait_until(lambda: len(spans.get_finished_spans()) == 7, "all spans")
    told = spans.get_finished_spans()
    assert len({span.context.trace_id for span in told}) == 1
    ids = {span.context.span_id: span for span in told}
    tree = sorted((span.name, ids[span.parent.span_id].name if span.parent else "") for span in told)
    assert tree == [
        ("gathering", "join"),
        ("installing", "join"),
        ("join", ""),
        ("reset", "switch"),
        ("reset", "switch"),
        ("switch", "installing"),
        ("switch", "installing"),
    ]
    by_name = {span.name: span for span in told}
    assert by_name["join"].attributes["p4reduce.job"] == "traced"
    assert [event.attributes["rank"] for event in by_name["gathering"].events] in ([0, 1], [1, 0])
    assert {span.attributes["p4reduce.switch"] for span in told if span.name == "switch"} == {"fake", "fake 1"}
    assert by_name["join"].end_time >= by_name["installing"].end_time


def test_a_switch_that_fails_is_an_error_of_the_trace(traced: Running, spans: memory.InMemorySpanExporter) -> None:
    traced.switches[1].fail["install"] = SwitchError("no room")
    for one in [traced.rank(rank, 2) for rank in range(2)]:
        assert one.outcome() is not None
    wait_until(lambda: any(span.name == "join" for span in spans.get_finished_spans()), "the trace")
    failed = {span.name for span in spans.get_finished_spans() if not span.status.is_ok and span.status.description}
    assert {"switch", "join"} <= failed


def test_a_job_that_never_gets_ready_has_a_trace_too(traced: Running, spans: memory.InMemorySpanExporter) -> None:
    alone = traced.rank(0, 2, timeout=0.3)
    assert alone.outcome() is not None
    wait_until(lambda: any(span.name == "join" for span in spans.get_finished_spans()), "the trace")


def test_it_is_off_unless_an_exporter_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    assert configured()._provider is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke_signals")
    with pytest.raises(SettingsError, match="OTEL_TRACES_EXPORTER=smoke_signals: no such exporter is installed"):
        configured()
    for name in ("console", "otlp"):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", name)
        traces = configured()
        assert traces._provider is not None
        traces.close()
