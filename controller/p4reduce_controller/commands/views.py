# SPDX-License-Identifier: Apache-2.0
"""Jobs and switches as tables for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.diagnostics import counted
from p4reduce_controller.commands import tables
from p4reduce_controller.commands.rates import Rates
from p4reduce_controller.switches.aggregator import DOWN

_MOST_NAMED = 8


def jobs(status: pb.StatusReply) -> RenderableType:
    if not status.jobs:
        return Group("no jobs", tables.queue(status)) if status.queue else "no jobs"
    table = Table("job", "number", "state", "ranks", "slots", "age", "waits for", "problems")
    for one in status.jobs:
        table.add_row(
            Text(f"{one.name}\nof {one.tenant}" if one.tenant else one.name),
            f"{one.number}.{one.generation}",
            one.state,
            f"{len(one.members)} of {one.world_size}",
            _slots(one),
            _age(one.age_s),
            Text(waits(one)),
            Text(_trouble(one)),
        )
    return Group(table, tables.queue(status)) if status.queue else table


def _slots(one: pb.Job) -> str:
    return f"{one.slots} of {one.most_slots}" if one.slots < one.most_slots else str(one.slots)


def job(status: pb.StatusReply, one: pb.Job) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    threads = f", {one.threads} threads a rank" if one.threads > 1 else ""
    head.add_row("job", Text(f"{one.name} ({one.number}.{one.generation}), {one.state}, {_age(one.age_s)} old"))
    if one.tenant:
        head.add_row("tenant", Text(f"{one.tenant}, by {one.user}"))
    head.add_row("slots", f"{_slots(one)}{threads}: {', '.join(_pools(status, one))}")
    for traffic in one.traffic:
        name = status.switches[traffic.switch].name
        head.add_row("packets", Text(f"{traffic.packets:,}, {traffic.bytes:,} bytes, at {name}"))
    for what, text in (("waits for", waits(one)), ("problems", _trouble(one))):
        if text:
            head.add_row(what, Text(text))
    table = Table("rank", "state", "sent by", "address")
    here = {member.rank: member for member in one.members}
    for rank in range(one.world_size):
        member = here.get(rank)
        if member is None:
            table.add_row(str(rank), "not joined", "", "")
            continue
        what = "not back yet" if member.away else "leaving" if member.leaving else "joined"
        leader = f"rank {member.leader}" if member.HasField("leader") and member.leader != rank else ""
        places = [
            f"{place.ip}:{place.udp_port} on port {place.port} of {switch.name}"
            for switch, place in zip(status.switches, member.places, strict=True)
            if place.heard
        ]
        table.add_row(str(rank), what, leader, Text("\n".join(places) or "no HELLO yet"))
    return Group(head, table)


def switches(status: pb.StatusReply) -> RenderableType:
    table = Table("switch", "parent", "P4Runtime", "aggregator", "state", "ports", "slots", "jobs")
    for one in status.switches:
        table.add_row(
            Text(one.name),
            Text(one.parent),
            Text(one.address),
            f"{one.ip}:{one.udp_port}",
            Text(tables.state(one)),
            Text(_ports(one)),
            f"{one.slots_used} of {one.slots}",
            Text(_some(one.jobs)),
        )
    return table


def switch(status: pb.StatusReply, one: pb.Switch) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    head.add_row("switch", Text(f"{one.name}, {tables.state(one)}"))
    if one.parent:
        head.add_row("parent", Text(one.parent))
    head.add_row("P4Runtime", Text(one.address))
    head.add_row("aggregator", f"{one.ip}:{one.udp_port} ({one.mac}), {one.lanes} lanes of {one.block_size} values")
    head.add_row("slots", f"{one.slots_used} of {one.slots}")
    head.add_row("jobs", Text(_some(one.jobs)))
    if not one.ports:
        return Group(head, Text(f"its ports are not known: {one.ports_unknown}"))
    table = Table("port", "state", "ranks")
    there: dict[int, list[str]] = {}
    at = list(status.switches).index(one)
    for job in status.jobs:
        for member in job.members:
            if member.places[at].heard:
                there.setdefault(member.places[at].port, []).append(f"rank {member.rank} of {job.name}")
    for port in one.ports:
        table.add_row(str(port.number), port.state.lower(), Text(_some(there.get(port.number, []))))
    return Group(head, table)


def slots(name: str, found: pb.SlotsReply) -> RenderableType:
    table = Table("slot", "half", "switch", "slot at the switch", "round", "counted", "not counted")
    for half in found.halves:
        of_switches = [f"the switch {one}" for one in half.switches]
        table.add_row(
            str(half.slot),
            str(half.half),
            Text(half.switch),
            str(half.at),
            str(half.round) if half.round >= 0 else "none yet",
            Text(_some([*(f"rank {rank}" for rank in half.ranks), *of_switches])),
            _some(f"rank {rank}" for rank in half.missing) if half.round >= 0 else "",
        )
    return Group(Text(f"job {name}: {counted(found.slots, 'slot')}"), table)


def top(rates: Rates, controller: str) -> RenderableType:
    status = rates.status
    head = (
        f"{controller}: {counted(len(status.jobs), 'job')}, "
        f"{counted(sum(len(one.members) for one in status.jobs), 'rank')}; "
        f"{counted(status.jobs_started, 'job')} begun, {status.jobs_finished} finished, {status.jobs_aborted} aborted"
    )
    table = Table("switch", "state", "slots", "packets/s", "outcomes per second")
    for one in status.switches:
        found = rates.by_switch.get(one.name, {})
        busy = sorted(((rate, what) for what, rate in found.items() if rate >= 0.5), reverse=True)
        total = sum(rate for what, rate in found.items() if what != "forged")
        share = f"{one.slots_used} of {one.slots}"
        table.add_row(
            Text(one.name), Text(tables.state(one)), share, f"{total:,.0f}", ", ".join(f"{w} {r:,.0f}" for r, w in busy)
        )
    return Group(Text(head), table, jobs(status))


def waits(one: pb.Job) -> str:
    """For whom, by rank and address, and for what; or who is slow, as ranks report it."""
    if not one.awaited and one.stragglers:
        return _some(f"rank {slow.rank}: {slow.why}" for slow in one.stragglers)
    if not one.awaited:
        return one.awaited_for if one.awaited_for == "the switches" else ""
    where = {member.rank: place.ip for member in one.members for place in member.places if place.heard}
    names = [f"rank {rank}" + (f" ({where[rank]})" if rank in where else "") for rank in one.awaited]
    return f"{_some(names)} {one.awaited_for}"


def _trouble(one: pb.Job) -> str:
    return "; ".join([*one.in_trouble, *(f"started without {text}" for text in one.left_out)])


def _pools(status: pb.StatusReply, one: pb.Job) -> list[str]:
    return [f"{pool.first}-{pool.first + pool.count - 1} of {status.switches[pool.switch].name}" for pool in one.pools]


def _ports(one: pb.Switch) -> str:
    down = [str(port.number) for port in one.ports if port.state in DOWN]
    if not one.ports:
        return "not known"
    return f"{len(one.ports) - len(down)} of {len(one.ports)} up" + (f"; down: {_some(down)}" if down else "")


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return ", ".join(every[:_MOST_NAMED]) + more


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
