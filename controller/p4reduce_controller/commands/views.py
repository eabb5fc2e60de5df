# SPDX-License-Identifier: Apache-2.0
"""The status of a controller, and of its jobs and switches, as text and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from p4reduce.commands.tables import show as show_table
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.diagnostics import counted
from p4reduce.transport.addresses import join_host_port
from p4reduce_controller.switches.aggregator import DOWN


class Rates:
    """Packets per second, from two statuses of a controller."""

    def __init__(self, status: pb.StatusReply, now: float) -> None:
        """Start with a first status. now: seconds on any clock that does not jump."""
        self.status = status
        self.seconds = 0.0
        self.by_switch: dict[str, dict[str, float]] = {}
        self._at = now

    def update(self, status: pb.StatusReply, now: float) -> None:
        """Compute the rates since the last status.

        A counter that has fallen counts from 0, as its switch was restarted.
        """
        self.by_switch = {}
        self.seconds = max(1e-6, now - self._at)
        before = {switch.name: dict(switch.outcomes) for switch in self.status.switches}
        for switch in status.switches:
            then = before.get(switch.name, {})
            self.by_switch[switch.name] = {
                what: (count - then.get(what, 0) if count >= then.get(what, 0) else count) / self.seconds
                for what, count in sorted(switch.outcomes.items())
            }
        self.status, self._at = status, now


_MOST_NAMED = 8  # names in one cell of a table
MOST_ROWS = 256  # ranks of a job in a table


def show(status: pb.StatusReply, console: Console | None = None) -> None:
    """Print the whole status, as `p4reduce status` does."""
    console = console or Console()
    for one in status.switches:
        for line in _lines_of(one):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if status.jobs:
        show_table(_ranks(status), console)
        for job in status.jobs:
            if problems := _problems(job):
                console.print(f"job {_title(job)}: {problems}", highlight=False, markup=False, soft_wrap=True)
    else:
        console.print("no jobs")
    if status.queue:
        show_table(_queue(status), console)
    if any(tenant.name for tenant in status.tenants):
        show_table(_tenants(status), console)


def _lines_of(one: pb.Switch) -> Iterator[str]:
    below = f", below {_parents(one)}" if one.parent else ""
    name = f"{one.name} at " if one.name not in ("", one.address) else ""
    yield f"switch {name}{one.address} {_state(one)}{below}"
    yield f"aggregator {_aggregator(one)}, {one.slots_used} of {one.slots} slots in use"
    if counts := ", ".join(f"{name} {count}" for name, count in sorted(one.outcomes.items()) if count):
        yield f"packets to the aggregator: {counts}"
    for loss in one.losses:
        direction = pb.Direction.Name(loss.direction).lower()
        yield f"port {loss.port} {direction}: loses {loss.rate:.2%}, {counted(loss.lost, 'packet')} so far"


def _ranks(status: pb.StatusReply) -> Table:
    table = Table("job", "number", "state", "slots", "age", "rank", "address", "rank state")
    in_trees = any(one.parent for one in status.switches)
    for one in status.jobs:
        # The leader is None until all ranks have been heard. If each rank sends its own packets, nothing is shared.
        senders = {member.leader for member in one.members if member.HasField("leader")}
        shared = "" if len(senders) in (0, len(one.members)) else f"\n{counted(len(senders), 'worker')}"
        ranges = [f"{_range(pool)} of {status.switches[pool.switch].name}" for pool in one.pools]
        slots = ranges if in_trees else map(_range, one.pools)
        head = [_title(one), _number(one), one.state + shared, "\n".join(slots), f"{one.age_s:.0f} s"]
        members, more = _members(one)
        for rank, member in members:
            row = [str(rank), "not joined", ""]
            if member is not None:
                sender = f", rank {member.leader} sends" if _has_leader(member) else ""
                addresses = _addresses(status, member) if in_trees else list(map(_address, member.places))
                row[1:] = ["\n".join(addresses) or "no HELLO yet", _member_state(member) + sender]
            table.add_row(*map(Text, (*head, *row)))
            head = [""] * len(head)  # only the first row of a job has these columns
        if more:
            table.add_row(*map(Text, head), more, "", "")
    return table


def _queue(status: pb.StatusReply) -> Table:
    table = Table("position", "queued job", "tenant", "slots", "ranks", "age", "waits because")
    for one in status.queue:
        ranks = f"{len(one.ranks)} of {one.world_size}"
        row = str(one.place), one.name, one.tenant, str(one.slots), ranks, f"{one.age_s:.0f} s", one.why
        table.add_row(*map(Text, row))
    return table


def _tenants(status: pb.StatusReply) -> Table:
    table = Table("tenant", "jobs", "slots", "slot-hours this month", "priority", "reserved", "refusals")
    for one in status.tenants:
        table.add_row(
            Text(one.name),
            f"{one.jobs} of {one.most_jobs}" if one.HasField("most_jobs") else str(one.jobs),
            f"{one.slots} of {one.most_slots}" if one.HasField("most_slots") else str(one.slots),
            f"{one.slot_hours:.1f}" + (f" of {one.most_slot_hours:g}" if one.HasField("most_slot_hours") else ""),
            str(one.priority),
            str(one.reserved_slots or ""),
            str(one.refusals or ""),
        )
    return table


def jobs(status: pb.StatusReply) -> RenderableType:
    if not status.jobs:
        return Group("no jobs", _queue(status)) if status.queue else "no jobs"
    table = Table("job", "number", "state", "ranks", "slots", "age", "waits for", "problems")
    for one in status.jobs:
        table.add_row(
            Text(_title(one)),
            _number(one),
            one.state,
            f"{len(one.members)} of {one.world_size}",
            _slots(one),
            _age(one.age_s),
            Text(waits(one)),
            Text(_problems(one)),
        )
    return Group(table, _queue(status)) if status.queue else table


def _slots(one: pb.Job) -> str:
    return f"{one.slots} of {one.most_slots}" if one.slots < one.most_slots else str(one.slots)


def job(status: pb.StatusReply, one: pb.Job) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    pools = (f"{_range(pool)} of {status.switches[pool.switch].name}" for pool in one.pools)
    threads = f", {one.threads} threads a rank" if one.threads > 1 else ""
    head.add_row("job", Text(f"{one.name} ({_number(one)}), {one.state}, {_age(one.age_s)} old"))
    if one.tenant:
        head.add_row("tenant", Text(f"{one.tenant}, by {one.user}"))
    head.add_row("slots", Text(f"{_slots(one)}{threads}: {', '.join(pools)}"))
    for traffic in one.traffic:
        name = status.switches[traffic.switch].name
        head.add_row("packets", Text(f"{traffic.packets:,}, {traffic.bytes:,} bytes, at {name}"))
    for what, text in (("waits for", waits(one)), ("problems", _problems(one))):
        if text:
            head.add_row(what, Text(text))
    table = Table("rank", "state", "sent by", "address")
    members, more = _members(one)
    for rank, member in members:
        if member is None:
            table.add_row(str(rank), "not joined", "", "")
        else:
            leader = f"rank {member.leader}" if _has_leader(member) else ""
            address = Text("\n".join(_addresses(status, member)) or "no HELLO yet")
            table.add_row(str(rank), _member_state(member), leader, address)
    if more:
        table.add_row(more, "", "", "")
    return Group(head, table)


def switches(status: pb.StatusReply) -> RenderableType:
    table = Table("switch", "parent", "P4Runtime", "aggregator", "state", "ports", "slots", "jobs")
    for one in status.switches:
        table.add_row(
            Text(one.name),
            Text(_parents(one)),
            Text(one.address),
            Text(join_host_port(one.ip, one.udp_port)),  # brackets would be markup
            Text(_state(one)),
            Text(_ports(one)),
            f"{one.slots_used} of {one.slots}",
            Text(_some(one.jobs)),
        )
    return table


def _parents(one: pb.Switch) -> str:
    return ", ".join(one.parents) or one.parent  # controllers of earlier releases know one parent


def switch(status: pb.StatusReply, one: pb.Switch) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    head.add_row("switch", Text(f"{one.name}, {_state(one)}"))
    if one.parent:
        head.add_row("parent", Text(_parents(one)))
    head.add_row("P4Runtime", Text(one.address))
    head.add_row("aggregator", Text(_aggregator(one)))
    if one.untagged_only:
        head.add_row("VLANs", "none: its program admits only workers without a VLAN tag")
    if one.ipv4_only:
        head.add_row("IPv6", "none: its program knows only IPv4 addresses")
    head.add_row("slots", f"{one.slots_used} of {one.slots}")
    head.add_row("jobs", Text(_some(one.jobs)))
    if not one.ports:
        return Group(head, Text(f"its ports are not known: {one.ports_unknown}"))
    table = Table("port", "state", "ranks")
    ranks: dict[int, list[str]] = {}  # by port
    index = list(status.switches).index(one)
    for job in status.jobs:
        for member in job.members:
            for place in member.places:
                if place.switch == index:
                    ranks.setdefault(place.port, []).append(f"rank {member.rank} of {job.name}")
    for port in one.ports:
        table.add_row(str(port.number), port.state.lower(), Text(_some(ranks.get(port.number, []))))
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
        by_outcome = rates.by_switch.get(one.name, {})
        # Rates that would be shown as 0 are left out.
        largest_first = sorted(((rate, outcome) for outcome, rate in by_outcome.items() if rate >= 0.5), reverse=True)
        # "forged" counts frames that are no packets to the aggregator.
        total = sum(rate for outcome, rate in by_outcome.items() if outcome != "forged")
        share = f"{one.slots_used} of {one.slots}"
        table.add_row(
            Text(one.name),
            Text(_state(one)),
            share,
            f"{total:,.0f}",
            ", ".join(f"{w} {r:,.0f}" for r, w in largest_first),
        )
    return Group(Text(head), table, jobs(status))


def waits(one: pb.Job) -> str:
    """Return whom the job waits for, by rank and address, and why; or which ranks are slow, as ranks report it."""
    if not one.awaited and one.stragglers:
        return _some(f"rank {slow.rank}: {slow.why}" for slow in one.stragglers)
    if not one.awaited:
        return one.awaited_for if one.awaited_for == "the switches" else ""
    where = {member.rank: place.ip for member in one.members for place in member.places}
    names = [f"rank {rank}" + (f" ({where[rank]})" if rank in where else "") for rank in one.awaited]
    return f"{_some(names)} {one.awaited_for}"


def _problems(one: pb.Job) -> str:
    return "; ".join([*one.in_trouble, *(f"at its start, {text}" for text in one.left_out)])


def _members(one: pb.Job) -> tuple[Iterable[tuple[int, pb.Member | None]], str]:
    """Return the ranks to list, each with its member or None if it has not joined, and a text about the others.

    Of many ranks, those that have not joined or come back, or that no switch has heard, come first.
    """
    here = {member.rank: member for member in one.members}
    ranks = list(range(one.world_size))
    if len(ranks) > MOST_ROWS:
        ranks.sort(key=lambda rank: rank in here and bool(here[rank].places) and not here[rank].away)
    more = len(ranks) - MOST_ROWS
    listed = ((rank, here.get(rank)) for rank in ranks[:MOST_ROWS])
    return listed, f"and {more} more" if more > 0 else ""


def _title(one: pb.Job) -> str:
    return f"{one.name}\nof {one.tenant}" if one.tenant else one.name


def _number(one: pb.Job) -> str:
    return f"{one.number}.{one.generation}"


def _member_state(member: pb.Member) -> str:
    return "not back yet" if member.away else "leaving" if member.leaving else "joined"


def _has_leader(member: pb.Member) -> bool:
    """Return whether another rank sends for the member."""
    return member.HasField("leader") and member.leader != member.rank


def _address(place: pb.Attachment) -> str:
    vlan = f" in VLAN {place.vlan}" if place.vlan else ""
    return f"{join_host_port(place.ip, place.udp_port)}{vlan} on port {place.port}"


def _addresses(status: pb.StatusReply, member: pb.Member) -> list[str]:
    """Return the member's address at each switch that has heard it."""
    return [f"{_address(place)} of {status.switches[place.switch].name}" for place in member.places]


def _range(pool: pb.Pool) -> str:
    return f"{pool.first}-{pool.first + pool.count - 1}"


def _state(one: pb.Switch) -> str:
    return ": ".join(filter(None, [f"{one.state}, spare" if one.spare else one.state, one.problem]))


def _aggregator(one: pb.Switch) -> str:
    address = join_host_port(one.ip, one.udp_port)
    return f"{address} ({one.mac}), {one.lanes} lanes of {one.block_size} values"


def _ports(one: pb.Switch) -> str:
    down = [str(port.number) for port in one.ports if port.state in DOWN]
    if not one.ports:
        return "not known"
    return f"{len(one.ports) - len(down)} of {len(one.ports)} up" + (f"; down: {_some(down)}" if down else "")


def _some(names: Iterable[str]) -> str:
    """Return the first names as a text, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - _MOST_NAMED} more" if len(all_names) > _MOST_NAMED else ""
    return ", ".join(all_names[:_MOST_NAMED]) + more


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
