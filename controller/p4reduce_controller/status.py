# SPDX-License-Identifier: Apache-2.0
"""What there is to know of jobs and switches, as the service's message."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.aggregator import Aggregator, Direction, SwitchError
from p4reduce_controller.job import Job, Member
from p4reduce_controller.jobs import Jobs
from p4reduce_controller.trees import Trees


async def status_of(jobs: Jobs, switches: Sequence[Aggregator], now: float) -> pb.StatusReply:
    """Counters are missing while their switch is away. `now`: seconds on the clock of the jobs."""
    used = [pool.used for pool in jobs.pools]
    return pb.StatusReply(
        switches=[
            await _switch(number, switch, jobs.site.trees, used[number]) for number, switch in enumerate(switches)
        ],
        jobs=[_job(job, now) for job in jobs],
        joins=jobs.joins,
        jobs_started=jobs.started,
        jobs_aborted=jobs.aborted,
        jobs_finished=jobs.finished,
    )


async def _switch(number: int, switch: Aggregator, trees: Trees, slots_used: int) -> pb.Switch:
    uplink = trees.uplinks.get(number)
    described = pb.Switch(
        name=trees.names[number],
        parent=trees.names[uplink.parent] if uplink else "",
        address=switch.target,
        connected=not switch.problem,
        ip=switch.address.ip,
        udp_port=switch.address.udp_port,
        mac=switch.address.mac,
        lanes=switch.layout.lanes,
        block_size=switch.layout.block_size,
        slots=switch.layout.slots,
        slots_used=slots_used,
        problem=switch.problem,
    )
    losses: dict[tuple[int, Direction], int] = {}
    try:
        described.outcomes.update(await switch.outcomes())
        losses = await switch.losses()
    except SwitchError as error:
        described.problem = str(error)
    for port, direction in sorted(losses.keys() | switch.loss_rates.keys()):
        rate = switch.loss_rates.get((port, direction), 0.0)
        which = pb.IN if direction == "in" else pb.OUT
        lost = losses.get((port, direction), 0)
        described.losses.append(pb.PortLoss(port=port, direction=which, rate=rate, lost=lost))
    return described


def _job(job: Job, now: float) -> pb.Job:
    return pb.Job(
        name=job.name,
        number=job.number,
        generation=job.generation,
        state=job.state.value,
        world_size=job.world_size,
        first_slots=[taken.first for taken in job.ranges],
        slots=job.slots,
        age_s=now - job.started,
        members=[
            pb.Member(
                rank=member.rank,
                leaving=member.leaving,
                away=member.session is None,
                places=[_place(member, switch) for switch in range(len(job.ranges))],
            )
            for _, member in sorted(job.members.items())
        ],
    )


def _place(member: Member, switch: int) -> pb.Place:
    heard = member.heard.get(switch)
    if heard is None:
        return pb.Place()
    sender = heard.sender
    return pb.Place(heard=True, port=heard.port, mac=sender.mac, ip=sender.ip, udp_port=sender.udp_port)
