# SPDX-License-Identifier: Apache-2.0
"""The reports of running ranks, and what follows from them: rates, and the ranks that others wait for. Without I/O."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import MOST_AWAITED
from p4reduce.errors import list_ranks
from p4reduce_controller.jobs.job import Job, Member

REPORT_S = 2.0  # seconds between reports of a rank
RANKS_A_SECOND = 50  # most reports per second of one job
STRAGGLER_SHARE = 0.2  # median share of the time that others wait for a rank before the rank is called late
STALE_INTERVALS = 3.0  # intervals without a report, after which the latest one no longer counts
FEW_RANKS = 256  # in a job with more, the rank that came last is looked for every LEAST_BUSY_S
LEAST_BUSY_S = 1.0
STUCK_S = 3.0  # seconds without progress, from which on the ranks that a report names count as late

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
    """Return the seconds between reports of each rank; large jobs report less often, to limit the controller's load."""
    return max(REPORT_S, world_size / RANKS_A_SECOND)


@dataclass
class Traffic:
    """Traffic of the ranks behind a port, as they report it. Bytes are UDP payloads; `in` means to the switch."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    packets_in: float = 0.0
    packets_out: float = 0.0
    retransmissions: float = 0.0


@dataclass
class Reports:
    """The reports of all ranks. Figures of a job are in its members, and go with them.

    `ports`: the traffic by the controller's switch number and port, which outlives jobs.
    """

    ports: dict[tuple[int, int], Traffic] = field(default_factory=lambda: defaultdict(Traffic))

    def record(self, job: Job, member: Member, report: pb.Report, now: float) -> None:
        """Record a report. `now`: on the clock of the jobs."""
        del report.awaited[MOST_AWAITED:]
        for name in ("busy_s", "stuck_s"):  # consumers read JSON, which has no infinities or NaN
            if not math.isfinite(getattr(report, name)):
                setattr(report, name, 0.0)
        if report.most_slots:
            member.used.append(min(report.most_slots, job.slots))
        # The previous controller has counted what a returning rank did before.
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
        """Forget the ports of removed switches, given by the controller's numbers."""
        for port in [port for port in self.ports if port[0] in switches]:
            del self.ports[port]

    def _count(self, job: Job, member: Member, grown: dict[str, int]) -> None:
        """Add to the ports where the rank is. With several ports, its packets are striped evenly over them."""
        ports = {(job.site.number(at), heard.port) for at, heard in member.heard.items()}
        for port in ports:
            traffic = self.ports[port]
            traffic.bytes_in += grown["bytes_sent"] / len(ports)
            traffic.bytes_out += grown["bytes_received"] / len(ports)
            traffic.packets_in += grown["packets_sent"] / len(ports)
            traffic.packets_out += grown["packets_received"] / len(ports)
            traffic.retransmissions += grown["retransmissions"] / len(ports)


def _is_fresh(job: Job, member: Member, now: float) -> bool:
    return member.rates is not None and now - member.reported_at <= STALE_INTERVALS * interval(job.world_size)


def _awaiting(job: Job, member: Member, now: float) -> float:
    """Return the share of the time for which the member waited for the rank that came last.

    All ranks end an operation together, so the rank that has been busy for the shortest time came last.
    """
    if member.rates is None:
        return 0.0
    since, least = job.least_busy
    if job.world_size <= FEW_RANKS or now - since >= LEAST_BUSY_S:
        fresh = (one.rates.busy for one in job.members.values() if one.rates is not None and _is_fresh(job, one, now))
        least = min(fresh, default=member.rates.busy)
        job.least_busy = now, least
    return max(0.0, member.rates.busy - least)


def stragglers(job: Job, now: float) -> list[pb.Straggler]:
    """Return the ranks that others wait for, and the reason for each. `now`: on the clock of the jobs."""
    found: dict[int, str] = {}
    waiting: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for rank, member in job.members.items():
        report = member.report
        if report is not None and _is_fresh(job, member, now) and report.stuck_s >= STUCK_S:
            for one in report.awaited:
                if one in job.members and one != rank:
                    waiting[one].append((rank, report.stuck_s))
    # A rank that does not know which rank at another switch is late names all of them, even those that wait as well.
    themselves = {rank for by in waiting.values() for rank, _ in by}
    some_do_not_wait = not waiting.keys() <= themselves
    for one, by in sorted(waiting.items()):
        if one in themselves and some_do_not_wait:
            continue
        seconds = max(since for _, since in by)
        verb = "waits" if len(by) == 1 else "wait"
        found[one] = f"{list_ranks([rank for rank, _ in by])} {verb} for it, for {seconds:.0f} s"
    busy = {
        rank: member.rates.busy
        for rank, member in job.members.items()
        if member.rates is not None and _is_fresh(job, member, now)
    }
    shares = sorted(busy.values())
    for rank, share in busy.items():
        late = _median_without(shares, share) - share if len(shares) > 1 else 0.0
        if rank not in found and late >= STRAGGLER_SHARE:
            found[rank] = f"comes late to collectives: others wait for it {late:.0%} of the time"
    return [pb.Straggler(rank=rank, why=why) for rank, why in sorted(found.items())]


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of at least two numbers in order, without one that equals the value."""
    left_out = bisect_left(ordered, value)
    low, high = (at + (at >= left_out) for at in ((len(ordered) - 2) // 2, (len(ordered) - 1) // 2))
    return (ordered[low] + ordered[high]) / 2
