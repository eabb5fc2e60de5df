# SPDX-License-Identifier: Apache-2.0
"""What monitoring sees, in Prometheus's format on a port of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.tasks import Tasks

log = logging.getLogger(__name__)

POLL = 2.0


class Metrics(Collector):
    """Serves the latest status, which it fetches every two seconds: scrapes do not reach the switch."""

    def __init__(self, status: Callable[[], Awaitable[pb.StatusReply]]) -> None:
        self._status = status
        self._latest: pb.StatusReply | None = None
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None
        self._tasks = Tasks(lambda _: None)

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which may be given as 0. Raises OSError when it is taken."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, self._thread = start_http_server(port, host, registry)
        self._tasks.start(self._poll(), "metrics")
        return int(self._server.server_port)

    async def close(self) -> None:
        await self._tasks.close()
        if self._server is not None and self._thread is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
            await asyncio.to_thread(self._thread.join)

    async def _poll(self) -> None:
        while True:
            try:
                self._latest = await self._status()
            except Exception:
                log.exception("the status for monitoring")
                self._latest = None  # rather nothing than what was
            await asyncio.sleep(POLL)

    def collect(self) -> Iterator[Metric]:
        status = self._latest
        if status is None:
            return
        yield from _of_switches(status.switches)
        jobs = GaugeMetricFamily("p4reduce_jobs", "Jobs that hold slots, by state", labels=["state"])
        for state in ("gathering", "installing", "ready", "finished", "aborted"):
            jobs.add_metric([state], sum(job.state == state for job in status.jobs))
        yield jobs
        yield GaugeMetricFamily(
            "p4reduce_ranks", "Ranks that are members of jobs", sum(len(j.members) for j in status.jobs)
        )
        yield CounterMetricFamily("p4reduce_joins", "Ranks that have joined", status.joins)
        yield CounterMetricFamily("p4reduce_jobs_started", "Jobs begun", status.jobs_started)
        yield CounterMetricFamily("p4reduce_jobs_finished", "Jobs that all ranks left", status.jobs_finished)
        yield CounterMetricFamily("p4reduce_jobs_aborted", "Jobs that died", status.jobs_aborted)


def _of_switches(switches: Iterable[pb.Switch]) -> Iterator[Metric]:
    connected = GaugeMetricFamily("p4reduce_switch_connected", "1 while P4Runtime is connected", labels=["switch"])
    slots = GaugeMetricFamily("p4reduce_slots", "Slots of the switch", labels=["switch"])
    used = GaugeMetricFamily("p4reduce_slots_used", "Slots that jobs hold", labels=["switch"])
    outcomes = CounterMetricFamily(
        "p4reduce_packets", "Packets to the aggregator, by what became of them", labels=["switch", "outcome"]
    )
    losses = CounterMetricFamily(
        "p4reduce_simulated_losses", "Packets lost on purpose", labels=["switch", "port", "direction"]
    )
    for switch in switches:
        name = switch.address
        connected.add_metric([name], int(switch.connected))
        slots.add_metric([name], switch.slots)
        used.add_metric([name], switch.slots_used)
        for outcome, count in sorted(switch.outcomes.items()):
            outcomes.add_metric([name, outcome], count)
        for loss in switch.losses:
            losses.add_metric([name, str(loss.port), pb.Direction.Name(loss.direction).lower()], loss.lost)
    yield from (connected, slots, used, outcomes, losses)
