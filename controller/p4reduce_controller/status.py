# SPDX-License-Identifier: Apache-2.0
"""What there is to know of jobs and switches, as the service's message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.aggregator import Aggregator, Direction, SwitchError
from p4reduce_controller.job import Job, Member, State
from p4reduce_controller.jobs import Jobs
from p4reduce_controller.reports import stragglers
from p4reduce_controller.tasks import Interrupted, apart

PATIENCE = 3.0  # with each switch; who asks waits for 10 s


async def status_of(jobs: Jobs, switches: Sequence[Aggregator], now: float) -> pb.StatusReply:
    """Counters are missing of a switch that is away or does not answer soon. `now`: on the clock of the jobs."""
    described = [_switch(number, switch, jobs) for number, switch in enumerate(switches)]
    return pb.StatusReply(
        switches=await asyncio.gather(*described),
        jobs=[_job(job, len(switches), now) for job in jobs],
        joins=jobs.joins,
        jobs_started=jobs.started,
        jobs_aborted=jobs.aborted,
        jobs_finished=jobs.finished,
    )


async def _switch(number: int, switch: Aggregator, jobs: Jobs) -> pb.Switch:
    trees = jobs.site.trees
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
        slots_used=jobs.pools[number].used,
        problem=switch.problem,
        state=switch.state,
    )
    if uplink and number not in jobs.children and not described.problem:
        described.problem = f"its parent {described.parent} has not heard it"
    described.rpc_errors.update(switch.counts.rpc_errors)
    described.cpu_drops.update(switch.counts.cpu_drops)
    losses: dict[tuple[int, Direction], int] = {}
    if described.connected:
        try:
            outcomes, losses = await asyncio.wait_for(apart(_counters(switch)), PATIENCE)
            described.outcomes.update(outcomes)
        except asyncio.TimeoutError:
            described.state = described.problem = f"no answer within {PATIENCE:g} s"
        except (SwitchError, Interrupted) as error:
            described.problem = str(error)
    for port, direction in sorted(losses.keys() | switch.loss_rates.keys()):
        rate = switch.loss_rates.get((port, direction), 0.0)
        which = pb.IN if direction == "in" else pb.OUT
        lost = losses.get((port, direction), 0)
        described.losses.append(pb.PortLoss(port=port, direction=which, rate=rate, lost=lost))
    return described


async def _counters(switch: Aggregator) -> tuple[dict[str, int], dict[tuple[int, Direction], int]]:
    return await switch.outcomes(), await switch.losses()


def _job(job: Job, switches: int, now: float) -> pb.Job:
    leaders = {} if job.state is State.GATHERING else job.leaders
    return pb.Job(
        name=job.name,
        number=job.number,
        generation=job.generation,
        state=job.state.value,
        world_size=job.world_size,
        pools=[
            pb.Pool(switch=at % switches, first=taken.first, count=taken.count)
            for at, taken in sorted(job.ranges.items())
        ],
        slots=job.slots,
        threads=job.threads,
        age_s=now - job.started,
        stragglers=stragglers(job, now) if job.state is State.READY else [],
        members=[
            pb.Member(
                rank=member.rank,
                leaving=member.leaving,
                away=member.session is None,
                leader=leaders.get(member.rank),
                places=[_place(member, switch) for switch in range(switches)],
                report=member.report,
                rates=member.rates,
                heard_s=now - member.heard_at if member.heard_at else 0.0,
                awaiting_s=member.awaiting_s,
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
