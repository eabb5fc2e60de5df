# SPDX-License-Identifier: Apache-2.0
"""A status for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from p4reduce.commands.tables import show as show_table
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.diagnostics import counted


def show(status: pb.StatusReply, console: Console | None = None) -> None:
    console = console or Console()
    for switch in status.switches:
        _show_switch(switch, console)
    if status.jobs:
        show_table(_jobs(status), console)
    else:
        console.print("no jobs")
    if status.queue:
        show_table(queue(status), console)
    if any(tenant.name for tenant in status.tenants):
        show_table(_tenants(status), console)


def state(switch: pb.Switch) -> str:
    return ": ".join(filter(None, [switch.state, switch.problem]))


def _show_switch(switch: pb.Switch, console: Console) -> None:
    below = f", below {switch.parent}" if switch.parent else ""
    name = f"{switch.name} at " if switch.name not in ("", switch.address) else ""
    console.print(f"switch {name}{switch.address} {state(switch)}{below}", highlight=False, soft_wrap=True)
    console.print(
        f"aggregator {switch.ip}:{switch.udp_port} ({switch.mac}), {switch.lanes} lanes of {switch.block_size} values, "
        f"{switch.slots_used} of {switch.slots} slots in use",
        highlight=False,
        soft_wrap=True,
    )
    counts = {name: count for name, count in switch.outcomes.items() if count}
    if counts:
        text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        console.print(f"packets to the aggregator: {text}", highlight=False, soft_wrap=True)
    for loss in switch.losses:
        way = pb.Direction.Name(loss.direction).lower()
        console.print(
            f"port {loss.port} {way}: loses {loss.rate:.2%}, {counted(loss.lost, 'packet')} so far",
            highlight=False,
            soft_wrap=True,
        )


def _jobs(status: pb.StatusReply) -> Table:
    table = Table("job", "number", "state", "slots", "age", "rank", "address", "rank state")
    for job in status.jobs:
        head = [
            f"{job.name}\nof {job.tenant}" if job.tenant else job.name,
            f"{job.number}.{job.generation}",
            _state(job),
            "\n".join(_slots(status, pool) for pool in job.pools),
            f"{job.age_s:.0f} s",
        ]
        here = {member.rank: member for member in job.members}
        for rank in range(job.world_size):
            member = here.get(rank)
            if member is None:
                row = [str(rank), "not joined", ""]
            else:
                row = [
                    str(rank),
                    "\n".join(_places(status, member)),
                    _is(member),
                ]
            table.add_row(*head, *row)
            head = [""] * len(head)
    return table


def queue(status: pb.StatusReply) -> Table:
    """Jobs that have no slots yet."""
    table = Table("position", "queued job", "tenant", "slots", "ranks", "age", "waits because")
    for one in status.queue:
        ranks = f"{len(one.ranks)} of {one.world_size}"
        table.add_row(str(one.place), one.name, one.tenant, str(one.slots), ranks, f"{one.age_s:.0f} s", one.why)
    return table


def _tenants(status: pb.StatusReply) -> Table:
    table = Table("tenant", "jobs", "slots", "slot-hours this month", "priority", "reserved", "refusals")
    for one in status.tenants:
        table.add_row(
            one.name,
            f"{one.jobs} of {one.most_jobs}" if one.HasField("most_jobs") else str(one.jobs),
            f"{one.slots} of {one.most_slots}" if one.HasField("most_slots") else str(one.slots),
            f"{one.slot_hours:.1f}" + (f" of {one.most_slot_hours:g}" if one.HasField("most_slot_hours") else ""),
            str(one.priority),
            str(one.reserved_slots or ""),
            str(one.refusals or ""),
        )
    return table


def _state(job: pb.Job) -> str:
    """With how many workers, where ranks share streams."""
    senders = {member.leader for member in job.members if member.HasField("leader")}
    if len(senders) in (0, len(job.members)):
        return job.state
    return f"{job.state}\n{len(senders)} worker{'s' if len(senders) > 1 else ''}"


def _is(member: pb.Member) -> str:
    what = "not back yet" if member.away else "leaving" if member.leaving else "joined"
    led = member.HasField("leader") and member.leader != member.rank
    return f"{what}, rank {member.leader} sends" if led else what


def _slots(status: pb.StatusReply, pool: pb.Pool) -> str:
    of = f" of {status.switches[pool.switch].name}" if any(switch.parent for switch in status.switches) else ""
    return f"{pool.first}-{pool.first + pool.count - 1}{of}"


def _places(status: pb.StatusReply, member: pb.Member) -> list[str]:
    """Where it is: at every switch, or in a tree at one of them, which then has to be named."""
    if not any(switch.parent for switch in status.switches):
        return [_at(place) for place in member.places]
    places = zip(status.switches, member.places, strict=True)
    return [f"{_at(place)} of {switch.name}" for switch, place in places if place.heard] or ["no HELLO yet"]


def _at(place: pb.Place) -> str:
    return f"{place.ip}:{place.udp_port} on port {place.port}" if place.heard else "no HELLO yet"
