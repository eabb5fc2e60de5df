# SPDX-License-Identifier: Apache-2.0
"""The status of jobs and switches, as a message of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import Interrupted, isolate_cancellation
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.deadlines import awaited
from p4reduce_controller.jobs.job import Job, Member, State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.reports import stragglers
from p4reduce_controller.switches.aggregator import Aggregator, Counted, Direction, SwitchError
from p4reduce_controller.switches.availability import SwitchState, Unavailable

# Attributes of a job that have the same names in the message.
_COPIED_FIELDS = ("name", "tenant", "user", "number", "generation", "world_size", "slots", "most_slots", "threads")
LOOK_MAX_AGE = 3.0  # seconds for which the answer to a question counts as current
WAITS = {
    pb.Waiting.JOIN: "to join",
    pb.Waiting.HELLO: "to be heard by the switches",
    pb.Waiting.SWITCH: "the switches",
    pb.Waiting.LEAVE: "to leave",
}
Traffic = dict[tuple[int, int], Counted]  # by job number and generation
SWITCH_TIMEOUT = 3.0  # timeout for each switch; clients wait for 10 s


async def status_of(jobs: Jobs, inventory: Inventory, now: float) -> pb.StatusReply:
    """Return the status. Counters of a switch that does not answer are missing. `now`: on the clock of the jobs."""
    switches = dict(inventory.switches)  # switches may be added or removed meanwhile
    described = [_switch(number, switch, jobs, inventory) for number, switch in switches.items()]
    holding = list(jobs)
    running = [_job(job, switches, now) for job in holding]
    counted = [_count(switch, one) for switch, one in zip(switches.values(), described, strict=True)]
    traffic = await asyncio.gather(*counted)
    for job, message in zip(holding, running, strict=True):
        message.traffic.extend(_traffic(job, traffic))
    return pb.StatusReply(
        switches=described,
        jobs=running,
        joins=jobs.lifecycle.joins,
        jobs_started=jobs.lifecycle.started,
        jobs_aborted=jobs.lifecycle.aborted,
        jobs_finished=jobs.lifecycle.finished,
        time_s=time.time(),
        queue=jobs.queue.described(now),
        tenants=jobs.tenants(),
    )


def _switch(number: int, switch: Aggregator, jobs: Jobs, inventory: Inventory) -> pb.Switch:
    parents = [inventory.name(parent) for parent in inventory.uplinks(number)]
    described = pb.Switch(
        number=number,
        name=inventory.name(number),
        parent=parents[0] if parents else "",
        parents=parents,
        draining=inventory.members[number].draining,
        leaving=inventory.members[number].leaving,
        spare=inventory.members[number].config.spare,
        jobs=[job.name for job in jobs.held_at(number)],
        address=switch.target,
        connected=switch.unavailable is None,
        slots_used=jobs.pool(number).used,
        untagged_only=not switch.knows_vlans,
        ipv4_only=not switch.knows_ipv6,
        **vars(switch.address),
        **vars(switch.layout),
    )
    described.state, described.problem = _state(number, jobs, inventory)
    described.ports_unknown = "" if switch.ports else switch.ports_unknown
    described.ports.extend(pb.Port(number=port, state=state) for port, state in sorted(switch.ports.items()))
    described.rpc_errors.update(switch.counts.rpc_errors)
    described.cpu_drops.update(switch.counts.cpu_drops)
    return described


def _state(number: int, jobs: Jobs, inventory: Inventory) -> tuple[str, str]:
    """Return the state of the switch for operators, and everything that keeps jobs from it."""
    conditions = [*inventory.conditions(number)]
    parents = inventory.uplinks(number)
    for pair in sorted(((number, one) for one in parents if (number, one) not in inventory.children), reverse=True):
        if all(one.state in (SwitchState.DRAINING, SwitchState.UPLINK_DOWN) for one in conditions):
            text = f"its parent {inventory.name(pair[1])} has not heard it"
            conditions.insert(0, Unavailable(text, SwitchState.UPLINK_DOWN))
    if not conditions and (why := inventory.excluded(number)):
        conditions = [why]
    state = conditions[0].state if conditions else SwitchState.READY
    if state is SwitchState.DRAINING and not (inventory.members[number].leaving or jobs.held_at(number)):
        state = SwitchState.CORDONED
    return state.value, "; ".join(map(str, conditions))


async def _count(switch: Aggregator, described: pb.Switch) -> Traffic:
    """Add the switch's counters to its description. Return those of jobs."""
    traffic: Traffic = {}
    losses: dict[tuple[int, Direction], int] = {}

    async def read() -> None:
        described.outcomes.update(await switch.outcomes())
        losses.update(await switch.losses())
        traffic.update(await switch.job_traffic())

    if described.connected:
        try:
            await asyncio.wait_for(isolate_cancellation(read()), SWITCH_TIMEOUT)
        except asyncio.TimeoutError:
            described.state, described.problem = SwitchState.NOT_READY.value, f"no answer within {SWITCH_TIMEOUT:g} s"
        except (SwitchError, Interrupted) as error:
            described.state, described.problem = SwitchState.NOT_READY.value, str(error)
    for port, direction in sorted(losses.keys() | switch.loss_rates.keys()):
        rate = switch.loss_rates.get((port, direction), 0.0)
        which = pb.IN if direction == "in" else pb.OUT
        lost = losses.get((port, direction), 0)
        described.losses.append(pb.PortLoss(port=port, direction=which, rate=rate, lost=lost))
    return traffic


def _traffic(job: Job, by_switch: Sequence[Traffic]) -> Iterator[pb.Traffic]:
    for position, counted in enumerate(by_switch):
        mine = [counted[one] for one in job.numbers_at_switches if one in counted]
        if mine:
            yield pb.Traffic(
                switch=position, packets=sum(one.packets for one in mine), bytes=sum(one.bytes for one in mine)
            )


def _takeovers(job: Job) -> list[str]:
    """Return a text for each tree whose slots are elsewhere."""
    roots, names = job.site.trees.roots, job.site.trees.names
    takeovers = [one for tree in sorted(job.lost_trees) if (one := job.takeover_of(tree))]
    return [
        f"the slots of {names[roots[one.tree]]} {'go' if one.under_way else 'went'} on at {names[roots[one.via]]}: "
        f"{one.why}"
        for one in takeovers
    ]


def _job(job: Job, switches: Mapping[int, Aggregator], now: float) -> pb.Job:
    leaders = {} if job.state is State.GATHERING else job.leaders
    positions = {number: position for position, number in enumerate(switches)}
    awaited_for, waited_for = _awaited(job, now)
    trouble = [(number, why) for number in sorted(job.holds) if (why := switches[number].unavailable)]
    return pb.Job(
        **{name: getattr(job, name) for name in _COPIED_FIELDS},
        state=job.state.value,
        pools=[
            pb.Pool(switch=positions[job.site.number(at)], first=taken.first, count=taken.count)
            for at, taken in sorted(job.ranges.items())
        ],
        more_numbers=[number for number, _ in job.every_number[1:]],
        age_s=now - job.started,
        awaited_for=awaited_for,
        awaited=waited_for,
        in_trouble=[
            *(f"{_name(job, number)} is {why}" for number, why in trouble),
            *job.ports_down,
            *_takeovers(job),
            *([f"it began at {job.spare_names}, which is a spare"] if job.is_at_spares else []),
        ],
        left_out=job.excluded_switches,
        stragglers=stragglers(job, now) if job.state is State.READY else [],
        members=[
            pb.Member(
                rank=member.rank,
                leaving=member.leaving,
                away=member.session is None,
                leader=leaders.get(member.rank),
                places=_places(job, member, positions),
                report=member.report,
                rates=member.rates,
                heard_s=now - member.heard_at if member.heard_at else 0.0,
                awaiting_s=member.awaiting_s,
            )
            for _, member in sorted(job.members.items())
        ],
    )


def _name(job: Job, number: int) -> str:
    return job.site.trees.names[job.site.index_of(number) or 0]


def _awaited(job: Job, now: float) -> tuple[str, Sequence[int]]:
    """Return what ranks wait for, and for which ranks."""
    if waits := awaited(job):
        return WAITS[waits.what], waits.ranks
    ranks, then = job.uncounted
    return ("to send its share", ranks) if ranks and now - then < LOOK_MAX_AGE else ("", [])


def _places(job: Job, member: Member, positions: Mapping[int, int]) -> list[pb.Attachment]:
    """Return where switches have heard the member's first thread. `positions`: those of switches in the reply."""
    heard = {job.site.number(at): one for at, one in sorted(member.heard.items(), reverse=True) if at < job.site.nodes}
    return [
        pb.Attachment(heard=True, switch=positions[number], port=one.port, vlan=one.vlan, **vars(one.sender))
        for number, one in sorted(heard.items())
        if number in positions
    ]
