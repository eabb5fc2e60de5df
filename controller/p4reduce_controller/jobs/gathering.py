# SPDX-License-Identifier: Apache-2.0
"""The gathering of a job's ranks: switches hear their HELLOs, and the job begins at the switches that it needs."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce.transport.base import mtu_advice
from p4reduce_controller.jobs.effects import Answer
from p4reduce_controller.jobs.job import Job, Member, State
from p4reduce_controller.jobs.lifecycle import Lifecycle
from p4reduce_controller.jobs.placement import on_the_way, placements_of
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.pools import PoolFull
from p4reduce_controller.switches.trees import Misplaced

SHORT_HELLOS = 20  # so many short HELLOs of a rank without a full one are no loss by chance


class Gathering:
    """The transition from gathering to installing."""

    def __init__(self, registry: Registry, switches: Switches, tenancy: Tenancy, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._switches = switches
        self._tenancy = tenancy
        self._lifecycle = lifecycle

    def on_hello(self, switch: int, hello: Heard) -> bool:
        """Handle a HELLO that a switch has passed on, and return whether effects follow from it.

        A HELLO counts if the job still waits for its rank in that switch's tree, or if the rank expects an answer.
        """
        known = self._registry.job_and_thread(hello.job, hello.generation)
        if known is None:
            return False
        job, thread = known
        children, here = self._switches.children_at(job.site), job.site.index_of(switch)
        if here is None or job.site.leads_to_a_switch(here, hello.port, children):
            return False  # the HELLO was sent to another switch, which is nearer to the rank
        at, site = job.site.switches * thread + here, self._registry.site_with_threads(job)
        if job.state is State.READY:
            return self._answered(job, at, hello)
        if job.state is not State.GATHERING:
            return False
        member = job.members.get(hello.worker)
        if member is None or member.nonce != hello.nonce or at not in site.within_reach(member.switch):
            return False
        if member.switch != job.site.trees.names[here] and job.site.trees.children(here) - children.keys():
            return False  # it may have come through one of these children, whose ports are unknown
        if site.trees.among(list(member.heard), site.trees.tree(at)):
            return False
        if hello.short:
            return self._too_long(job, member, at)
        if problem := self._registry.claim(job, at, hello):
            where = f"at the switch {job.site.addresses[here]}"
            self._lifecycle.abort(job, job.blame([member.rank], pb.JOIN_REFUSED, f"is refused {where}: {problem}"))
            return True
        member.heard[at] = hello
        if hello.full:  # so the rank has its answer before the job is ready
            self._lifecycle.add(Answer(site.number(at), hello))
        self.proceed(job)
        return True

    def _answered(self, job: Job, at: int, hello: Heard) -> bool:
        """Answer the HELLO of a ready job's rank, and return whether it was answered.

        With such a HELLO a rank tests its path: a full one shows whether packets of any length reach the rank, a short
        one whether any packet does.
        """
        member = job.members.get(hello.worker)
        heard = member.heard.get(at) if member is not None and member.nonce == hello.nonce else None
        if not (hello.full or hello.short) or heard is None or (heard.port, heard.sender) != (hello.port, hello.sender):
            return False
        self._lifecycle.add(Answer(job.site.number(at), hello))
        return True

    def _too_long(self, job: Job, member: Member, at: int) -> bool:
        """Count a short HELLO, and abort the job if full ones never arrive. Return whether it was aborted."""
        member.short[at] += 1
        if member.short[at] < SHORT_HELLOS:
            return False
        needed, where = job.site.layout.mtu, job.site.addresses[at % job.site.switches]
        text = (
            f"is refused at the switch {where}: its short packets arrive there, but not the job's longest, {needed} "
            f"bytes with IPv4 headers; every link on the way needs an MTU of {needed} or more{mtu_advice(needed)}"
        )
        self._lifecycle.abort(job, job.blame([member.rank], pb.JOIN_REFUSED, text))
        return True

    def proceed(self, job: Job) -> None:
        """Install the job if all of its ranks have been heard and there is room."""
        site = self._registry.site_with_threads(job)
        if job.ranks_not_meeting(lambda member: site.heard_everywhere(member.heard)):
            return
        job.freeze_roles()
        try:
            indices = on_the_way(site, job)
            needed = {at % site.switches for at in indices}
            self._switches.check_usable(job, needed)
            self._registry.take_slots(job, indices, self._tenancy.reserved_for_others(job.tenant, self._registry.held))
            job.children = self._switches.children_at(job.site)
            job.placements = placements_of(site, job, job.children, self._registry.hosts)
        except PoolFull as error:
            now = self._lifecycle.now
            if (self._registry.moving or self._registry.freeing(now)) and now < job.deadline:
                return  # the next tick tries again
            why = f"all ranks were heard, but {error}; ask for fewer slots, or wait until other jobs end"
            self._lifecycle.end(job, pb.SLOTS_EXHAUSTED, why)
        except Misplaced as error:
            self._lifecycle.end(job, pb.JOIN_REFUSED, str(error))
        else:
            self._lifecycle.install(job)
