# SPDX-License-Identifier: Apache-2.0
"""The status for scrapes and pages. It is polled every two seconds, so that scrapes and pages never query a switch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.constants import ADDITIONAL_OUTCOMES
from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.reports import Traffic

log = logging.getLogger(__name__)

POLL = 2.0  # seconds between two polls of the status
HISTORY_S = 3600.0
POINT_S = 10.0  # seconds between points of the history
MOST_JOBS = 64  # in each point of the history
_ADDITIONAL_OUTCOMES = {outcome.name.lower() for outcome in ADDITIONAL_OUTCOMES}


@dataclass(frozen=True)
class Rates:
    """Rates of a switch per second, between two polls."""

    packets: float
    rounds: float
    sent_up: float


@dataclass(frozen=True)
class Point:
    """A point of the history. Rates are per second; those of switches and jobs are by name.

    at: seconds since the epoch.
    """

    at: float
    bytes: float
    retransmissions: float
    ranks: int
    slots_used: int
    switches: Mapping[str, float]
    jobs: Mapping[str, float]


@dataclass
class View:
    """The latest status. at: seconds since the epoch."""

    at: float
    status: pb.StatusReply
    rates: dict[str, Rates]
    ports: dict[tuple[int, int], Traffic]
    port_rates: dict[tuple[int, int], float]  # bytes per second, both directions together


@dataclass
class Watch:
    """The poller of the status.

    `status`: returns the status.
    `ports`: the traffic of the switches' ports so far.
    """

    status: Callable[[], Awaitable[pb.StatusReply]]
    ports: Mapping[tuple[int, int], Traffic]
    last_view: View | None = None
    history: deque[Point] = field(default_factory=lambda: deque(maxlen=int(HISTORY_S / POINT_S)))
    _tasks: Tasks = field(default_factory=lambda: Tasks(lambda _: None))

    def start(self) -> None:
        self._tasks.start(self._poll(), "watch")

    async def close(self) -> None:
        await self._tasks.close()

    async def _poll(self) -> None:
        while True:
            try:
                self.look(await self.status(), time.time())
            except Exception:
                log.exception("the status for monitoring")
                self.last_view = None  # better nothing than old values
            await asyncio.sleep(POLL)

    def look(self, status: pb.StatusReply, at: float) -> None:
        before = self.last_view
        ports = {port: Traffic(**vars(traffic)) for port, traffic in self.ports.items()}
        self.last_view = View(at, status, {}, ports, {})
        if before is not None and at > before.at:
            self.last_view.rates = _switch_rates(before, self.last_view)
            self.last_view.port_rates = {
                port: max(0.0, _bytes(now) - _bytes(before.ports.get(port, Traffic()))) / (at - before.at)
                for port, now in ports.items()
            }
        if not self.history or at - self.history[-1].at >= POINT_S:
            self.history.append(_point(self.last_view))


def live(status: pb.StatusReply) -> list[pb.Job]:
    """Return the jobs that have not ended. Their names are unique within each tenant."""
    over = (State.FINISHED.value, State.ABORTED.value)
    return [job for job in status.jobs if job.state not in over]


def titled(job: pb.Job) -> str:
    return f"{job.tenant}/{job.name}" if job.tenant else job.name


def _bytes(traffic: Traffic) -> float:
    return traffic.bytes_in + traffic.bytes_out


def _switch_rates(before: View, now: View) -> dict[str, Rates]:
    earlier = {switch.address: switch.outcomes for switch in before.status.switches}
    elapsed = now.at - before.at
    rates = {}
    for switch in now.status.switches:
        then = earlier.get(switch.address)
        if then and switch.outcomes:
            grown = {name: max(0, count - then.get(name, 0)) for name, count in switch.outcomes.items()}
            packets = sum(count for name, count in grown.items() if name not in _ADDITIONAL_OUTCOMES)
            rounds, sent_up = grown.get("completed", 0), grown.get("sent_up", 0)
            rates[switch.address] = Rates(packets / elapsed, rounds / elapsed, sent_up / elapsed)
    return rates


def _point(view: View) -> Point:
    jobs = live(view.status)
    by_job = {titled(job): sum(m.rates.bytes_sent + m.rates.bytes_received for m in job.members) for job in jobs}
    return Point(
        at=view.at,
        bytes=sum(by_job.values()),
        retransmissions=sum(member.rates.retransmissions for job in jobs for member in job.members),
        ranks=sum(len(job.members) for job in jobs),
        slots_used=sum(switch.slots_used for switch in view.status.switches),
        switches={
            switch.address: rates.packets
            for switch in view.status.switches
            if (rates := view.rates.get(switch.address))
        },
        jobs=dict(sorted(by_job.items(), key=lambda one: -one[1])[:MOST_JOBS]),
    )
