# SPDX-License-Identifier: Apache-2.0
"""The reference page of metrics: every series of the controller, read from the collectors that `/metrics` uses."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.observability.certificates import CertificateExpiry
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.telemetry import Telemetry
from p4reduce_controller.observability.watch import View
from p4reduce_controller.tenants.pace import Pace


def page() -> str:
    parts = [
        "# Metrics\n",
        "The controller exports these series in `/metrics`; [how to scrape it](../seeing.md#metrics).\n",
        "| series | meaning | type | labels |\n|---|---|---|---|",
        *(_row(metric, labels) for metric, labels in sorted(metrics(), key=lambda one: one[0].name)),
    ]
    return "\n".join(parts) + "\n"


def metrics() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Yield every metric of the controller, without samples, and the names of its labels."""
    for own in vars(Telemetry()).values():
        if isinstance(own, MetricWrapperBase):
            yield from ((metric, tuple(own._labelnames)) for metric in own.collect())
    registry = CollectorRegistry(auto_describe=False)
    nothing = View(0.0, pb.StatusReply(), {}, {}, {})
    for one in (Metrics(lambda: nothing), CertificateExpiry(), Pace()):
        registry.register(one)
    yield from ((metric, tuple(getattr(metric, "_labelnames", ()))) for metric in registry.collect())


def _row(metric: Metric, labels: tuple[str, ...]) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return f"| `{name}` | {metric.documentation} | {metric.type} | {', '.join(f'`{one}`' for one in labels)} |"
