# SPDX-License-Identifier: Apache-2.0
"""The status and its history as JSON for the status page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.transport.addresses import join_host_port
from p4reduce_controller.observability.watch import Point, View, live, titled
from p4reduce_controller.switches.aggregator import DOWN
from p4reduce_controller.switches.availability import Unavailable

MOST_JOBS = 200  # jobs on the page
MOST_RANKS = 2048  # ranks on the page, of all jobs together


def view_of(view: View, unavailable: Unavailable | None) -> dict[str, Any]:
    """Return the latest status as JSON. `unavailable`: the reason why no job can be served now."""
    status = view.status
    ranks_left = MOST_RANKS
    jobs = []
    for job in status.jobs[:MOST_JOBS]:
        members = job.members[:ranks_left]
        ranks_left -= len(members)
        jobs.append(_job(job, members))
    return {
        "at": view.at,
        "unready": str(unavailable or ""),
        "counts": {
            "started": status.jobs_started,
            "finished": status.jobs_finished,
            "aborted": status.jobs_aborted,
            "jobs": len(live(status)),
            "ranks": sum(len(job.members) for job in live(status)),
        },
        "switches": [_switch(switch, view) for switch in status.switches],
        "jobs": jobs,
    }


def history_of(points: Iterable[Point], sees: Callable[[str], bool]) -> dict[str, Any]:
    """Return the history as columns: lists with one value for each point.

    Columns of a switch or a job have None for points at which it has no value.

    `sees`: returns whether the caller may see a job; its argument is what `titled` returns for the job.
    """
    points = list(points)
    switches = sorted({name for point in points for name in point.switches})
    jobs = sorted(filter(sees, points[-1].jobs)) if points else []
    return {
        "at": [round(point.at) for point in points],
        "bytes": [round(point.bytes) for point in points],
        "retransmissions": [round(point.retransmissions, 1) for point in points],
        "ranks": [point.ranks for point in points],
        "slots": [point.slots_used for point in points],
        "switches": {name: [_rounded(point.switches.get(name)) for point in points] for name in switches},
        "jobs": {name: [_rounded(point.jobs.get(name)) for point in points] for name in jobs},
    }


def _rounded(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


def _fields(message: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _switch(switch: pb.Switch, view: View) -> dict[str, Any]:
    rates = view.rates.get(switch.address)
    return {
        **_fields(switch, "address", "parent", "connected", "state", "problem", "slots", "slots_used"),
        "name": switch.name or switch.address,
        "parents": list(switch.parents),
        "aggregator": join_host_port(switch.ip, switch.udp_port),
        **{f"{name}_s": getattr(rates, name, None) for name in ("packets", "rounds", "sent_up")},
        "ports": {str(port): rate for (at, port), rate in sorted(view.port_rates.items()) if at == switch.number},
        "ports_down": [port.number for port in switch.ports if port.state in DOWN],
        "losing": [
            {"port": loss.port, "direction": pb.Direction.Name(loss.direction).lower(), "rate": loss.rate}
            for loss in switch.losses
            if loss.rate
        ],
    }


def _job(job: pb.Job, members: Iterable[pb.Member]) -> dict[str, Any]:
    return {
        **_fields(job, "state", "world_size", "slots", "most_slots", "age_s"),
        "name": titled(job),
        "number": f"{job.number}.{job.generation}",
        "trouble": list(job.in_trouble),
        "switch_packets": sum(one.packets for one in job.traffic),
        "switch_bytes": sum(one.bytes for one in job.traffic),
        "stragglers": [_fields(one, "rank", "why") for one in job.stragglers],
        "ranks": [_rank(member) for member in members],
    }


def _rank(member: pb.Member) -> dict[str, Any]:
    """Return a rank as JSON. `at` lists [switch, port] pairs: a switch as an index into `switches`, and the port."""
    fields: dict[str, Any] = {
        **_fields(member, "rank", "heard_s"),
        "at": [[place.switch, place.port] for place in member.places],
        "is": "away" if member.away else "leaving" if member.leaving else "here",
    }
    if member.HasField("leader") and member.leader != member.rank:
        fields["leader"] = member.leader
    if member.HasField("report"):
        rates = member.rates
        fields |= _fields(member.report, "operations", "retransmissions", "packets_sent", "stuck_s")
        fields |= _fields(rates, "busy", "awaiting")
        fields |= {
            "awaiting_s": member.awaiting_s,
            "sent_s": rates.bytes_sent,
            "received_s": rates.bytes_received,
            "rounds_s": rates.rounds,
            "retransmissions_s": rates.retransmissions,
        }
    return fields
