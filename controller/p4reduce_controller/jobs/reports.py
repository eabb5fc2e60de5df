# SPDX-License-Identifier: Apache-2.0
"""What ranks tell of themselves while they run, and what follows from it: rates, and who is waited for. Without I/O."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Member, list_ranks

REPORT_S = 2.0  # between reports of a rank
RANKS_A_SECOND = 50  # that report at most, of one job
MOST_AWAITED = 8  # ranks that are believed to be awaited, of each report
LATE = 0.2  # share of the time that most others wait for a rank that is called late
SILENT = 3.0  # intervals without a report, after which what the latest says is old
STUCK_S = 3.0

_COUNTS = (
    "operations",
    "rounds",
    "retransmissions",
    "packets_sent",
    "packets_received",
    "bytes_sent",
    "bytes_received",
)


def interval(world_size: int) -> float:
    """Seconds between reports of a rank of a job of so many, so that many ranks keep no controller busy."""
    return max(REPORT_S, world_size / RANKS_A_SECOND)


@dataclass
class Traffic:
    """Of the ranks behind a port, as they have counted it. Bytes are those of UDP payloads; `in` is to the switch."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    packets_in: float = 0.0
    packets_out: float = 0.0
    retransmissions: float = 0.0


@dataclass
class Reports:
    """Of all ranks. What is of a job is with its members, and goes with them; `ports` stays, by the controller's number
    of the switch and port."""

    ports: dict[tuple[int, int], Traffic] = field(default_factory=lambda: defaultdict(Traffic))

    def take(self, job: Job, member: Member, report: pb.Report, now: float) -> None:
        """now: on the clock of the jobs."""
        del report.awaited[MOST_AWAITED:]
        for name in ("busy_s", "stuck_s"):  # who reads them reads JSON, which has no other numbers
            if not math.isfinite(getattr(report, name)):
                setattr(report, name, 0.0)
        if report.most_slots:
            member.used.append(min(report.most_slots, job.slots))
        # What a rank that has come back did before was counted by the controller of then.
        before = member.report or (report if member.away_since else pb.Report())
        elapsed = now - (member.reported_at or now)
        grown = {name: max(0, getattr(report, name) - getattr(before, name)) for name in _COUNTS}
        self._count(job, member, grown)
        if member.report is not None and elapsed > 0:
            rates = pb.Rates(**{name: count / elapsed for name, count in grown.items()})
            rates.busy = min(1.0, max(0.0, report.busy_s - before.busy_s) / elapsed)
            member.rates = rates
            rates.awaiting = _awaiting(job, member, now)
            member.awaiting_s += rates.awaiting * elapsed
        member.report, member.reported_at = report, now

    def forget(self, switches: Collection[int]) -> None:
        """Those, by the controller's numbers, are gone."""
        for place in [place for place in self.ports if place[0] in switches]:
            del self.ports[place]

    def _count(self, job: Job, member: Member, grown: dict[str, int]) -> None:
        """At the ports where the rank is; between several, its packets are dealt evenly."""
        places = {(job.site.number(at), heard.port) for at, heard in member.heard.items()}
        for place in places:
            traffic = self.ports[place]
            traffic.bytes_in += grown["bytes_sent"] / len(places)
            traffic.bytes_out += grown["bytes_received"] / len(places)
            traffic.packets_in += grown["packets_sent"] / len(places)
            traffic.packets_out += grown["packets_received"] / len(places)
            traffic.retransmissions += grown["retransmissions"] / len(places)


def _is_fresh(job: Job, member: Member, now: float) -> bool:
    return member.rates is not None and now - member.reported_at <= SILENT * interval(job.world_size)


def _awaiting(job: Job, member: Member, now: float) -> float:
    """Share of the time that it waited for the rank that came last. All ranks end an operation together, so who has
    been at it for the shortest time came last."""
    others = [one.rates.busy for one in job.members.values() if one.rates is not None and _is_fresh(job, one, now)]
    return max(0.0, member.rates.busy - min(others)) if member.rates is not None and others else 0.0


def stragglers(job: Job, now: float) -> list[pb.Straggler]:
    """Return the ranks that others wait for, and why that is said. now: on the clock of the jobs."""
    found: dict[int, str] = {}
    waiting: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for rank, member in job.members.items():
        report = member.report
        if report is not None and _is_fresh(job, member, now) and report.stuck_s >= STUCK_S:
            for one in report.awaited:
                if one in job.members and one != rank:
                    waiting[one].append((rank, report.stuck_s))
    # Who cannot tell which rank of another switch it waits for names all of them, those that wait as well.
    themselves = {rank for by in waiting.values() for rank, _ in by}
    for one, by in sorted(waiting.items()):
        if one in themselves and not waiting.keys() <= themselves:
            continue
        seconds = max(since for _, since in by)
        verb = "waits" if len(by) == 1 else "wait"
        found[one] = f"{list_ranks([rank for rank, _ in by])} {verb} for it, for {seconds:.0f} s"
    busy = {
        rank: member.rates.busy
        for rank, member in job.members.items()
        if member.rates is not None and _is_fresh(job, member, now)
    }
    for rank, share in busy.items():
        others = [more for other, more in busy.items() if other != rank]
        if rank not in found and others and (late := median(others) - share) >= LATE:
            found[rank] = f"comes late to collectives: others wait for it {late:.0%} of the time"
    return [pb.Straggler(rank=rank, why=why) for rank, why in sorted(found.items())]
