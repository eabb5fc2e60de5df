# SPDX-License-Identifier: Apache-2.0
"""The gathering of a job's ranks: switches hear their HELLOs, and the job begins at the switches that it needs."""

from __future__ import annotations

from collections.abc import Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import list_ranks
from p4reduce.protocol.constants import NOBODY
from p4reduce.transport.addresses import protocol_of
from p4reduce.transport.base import mtu_advice
from p4reduce_controller.jobs.effects import Answer
from p4reduce_controller.jobs.job import Job, Member, State
from p4reduce_controller.jobs.lifecycle import Lifecycle
from p4reduce_controller.jobs.placement import on_the_way, place, spares_on_the_way
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.pools import PoolFull
from p4reduce_controller.switches.trees import Misplaced

# Every second HELLO of a rank is full, as long as the job's longest packets; the others are short (docs/protocol.md,
# section 6). If so many short ones have arrived and no full one, loss by chance does not explain it.
SHORT_HELLOS = 20

SPARE_WAIT = 2.0  # seconds for which a job whose ranks have been heard by all other switches waits for its spares


class Gathering:
    """The transition from gathering to installing."""

    def __init__(self, registry: Registry, switches: Switches, tenancy: Tenancy, lifecycle: Lifecycle) -> None:
        self._registry = registry
        self._switches = switches
        self._tenancy = tenancy
        self._lifecycle = lifecycle

    def on_hello(self, switch: int, hello: Heard) -> bool:
        """Handle a HELLO that a switch has passed on, and return whether effects may be due now.

        A HELLO counts if the job still waits for its rank in that switch's tree, or if the rank expects an answer.

        `switch`: the controller's number of the switch.
        """
        known = self._registry.job_at(switch, hello.job, hello.generation)
        if known is None:
            return False
        # `base_index` is the node in `job.site`, and `site_index` the node and the thread in `site`.
        job, site_index = known
        site, base_index = self._registry.site_with_threads(job), site_index % job.site.nodes
        children = self._switches.children_of(job.site, switch)
        if job.site.leads_to_a_switch(base_index, hello.ports, children):
            return False  # the HELLO was sent to another switch, which is nearer to the rank
        if job.state is State.READY:
            return self._answered(job, site_index, hello)
        if job.state is not State.GATHERING:
            return False
        member = self._sender(job, hello)
        if member is None or site_index not in site.within_reach(member.switch):
            return False
        # A rank that names no switch of a tree sends HELLOs to all of them. One for this switch may come through a
        # child of it. While this switch has not heard a child, it is unknown which port leads there, and the rank would
        # seem to be at this switch.
        unheard_children = job.site.trees.children(base_index) - children.keys()
        if member.switch != job.site.trees.names[base_index] and unheard_children:
            return False
        if site.trees.among(list(member.heard), site.trees.tree(site_index)):
            return False  # a switch of the tree has heard the rank already; one in each tree is enough
        if any(at != site_index for at in self._same_place(job, member, site.trees.tree(site_index))):
            return False  # in other trees, the rank is at another switch, which is in this tree too
        if hello.short:
            return self._count_short_hello(job, member, site_index)
        if problem := self._registry.claim(job, site_index, hello):
            where = f"at the switch {job.site.addresses[base_index]}"
            self._lifecycle.abort(job, job.blame([member.rank], pb.JOIN_REFUSED, f"is refused {where}: {problem}"))
            return True
        member.heard[site_index] = hello
        if site.heard_everywhere(member.heard):
            job.unheard.discard(member.rank)
            self._lifecycle.awaited.pop(member.nonce)  # its further HELLOs are dropped unread, until the job is ready
        if hello.full:  # so the rank has its answer before the job is ready; ranks that send no full ones expect none
            self._lifecycle.add(Answer(site.number(site_index), hello))
        self.proceed(job)
        return True

    def _sender(self, job: Job, hello: Heard) -> Member | None:
        """Return the rank with the nonce of the HELLO, whose field `worker` is too small for the largest ranks."""
        member = job.members.get(self._lifecycle.awaited.get(hello.nonce, -1))
        known = member is not None and (member.nonce, min(member.rank, NOBODY)) == (hello.nonce, hello.worker)
        return member if known else None

    def _same_place(self, job: Job, member: Member, tree: int) -> list[int]:
        """Return the nodes in that tree of the switches that have heard the rank in other trees."""
        site = self._registry.site_with_threads(job)
        numbers = {site.number(at) for at in member.heard}
        indices = [index for number in numbers for node in job.site.nodes_of(number) for index in site.indices(node)]
        return [index for index in indices if site.trees.tree(index) == tree]

    def _answered(self, job: Job, site_index: int, hello: Heard) -> bool:
        """Answer the HELLO of a ready job's rank, and return whether it was answered.

        With such a HELLO a rank tests its path: a full one shows whether packets of any length reach the rank, a short
        one whether any packet does.
        """
        member = self._sender(job, hello)
        heard = member.heard.get(site_index) if member is not None else None
        if (
            not (hello.full or hello.short)
            or heard is None
            or (heard.ports, heard.vlan, heard.sender) != (hello.ports, hello.vlan, hello.sender)
        ):
            return False
        self._lifecycle.add(Answer(job.site.number(site_index), hello))
        return True

    def _count_short_hello(self, job: Job, member: Member, site_index: int) -> bool:
        """Count a short HELLO, and abort the job if full ones never arrive. Return whether it was aborted."""
        member.short[site_index] += 1
        if member.short[site_index] < SHORT_HELLOS:
            return False
        where = job.site.addresses[site_index % job.site.nodes]
        needed = job.site.layout.mtu(where.ip)
        text = (
            f"is refused at the switch {where}: its short packets arrive there, but not the job's longest, {needed} "
            f"bytes with {protocol_of(where.ip)} headers; every link on the way needs an MTU of {needed} or more"
            f"{mtu_advice(needed, ip=where.ip)}"
        )
        self._lifecycle.abort(job, job.blame([member.rank], pb.JOIN_REFUSED, text))
        return True

    def proceed(self, job: Job) -> None:
        """Install the job if all of its ranks have been heard and there is room."""
        if job.unheard:
            self._give_up_spares(job)
        if job.unheard:
            return
        site = self._registry.site_with_threads(job)
        job.freeze_roles()
        try:
            indices = on_the_way(site, job)
            spares, misplaced = spares_on_the_way(site, job)
            needed = {site_index % site.nodes for site_index in (*indices, *spares)}
            if len(job.site.trees.roots) > 1 and self._switches.briefly_unavailable(job.site, needed):
                return  # in a moment, the switch is back, or its trees are left out
            whys = self._switches.unusable_trees(job, needed)
            if whys.keys() | job.site.trees.spare_trees != set(range(len(job.site.trees.roots))):
                whys |= {tree % len(job.site.trees.roots): why for tree, why in misplaced.items()}
            if whys and len(whys) == len(job.site.trees.roots):
                raise Misplaced("; ".join(dict.fromkeys(whys.values())))
            if whys:
                self._leave_out(job, whys)
                site = self._registry.site_with_threads(job)
                indices = on_the_way(site, job)
            self._registry.take_slots(job, indices, self._tenancy.reserved_for_others(job.tenant, self._registry.held))
            job.children = self._switches.children_at(job.site)
            place(site, job, job.children, self._registry.hosts)
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

    def _give_up_spares(self, job: Job) -> None:
        """Leave out spares that have not heard all ranks, some time after all other switches have."""
        spare_trees, now = job.site.trees.spare_trees, self._lifecycle.now
        if not spare_trees or job.absent:
            return
        site = self._registry.site_with_threads(job)
        unheard: set[int] = set()
        for rank in job.unheard:
            unheard |= set(range(len(site.trees.roots))) - {site.trees.tree(at) for at in job.members[rank].heard}
        if not unheard <= site.trees.spare_trees:
            return
        job.spares_awaited_since = min(job.spares_awaited_since, now)
        if now - job.spares_awaited_since >= SPARE_WAIT:
            who = list_ranks(sorted(job.unheard))
            self._leave_out(job, {tree % len(job.site.trees.roots): f"it has not heard {who}" for tree in unheard})
            for rank in job.unheard:
                self._lifecycle.awaited.pop(job.members[rank].nonce)
            job.unheard.clear()

    def _leave_out(self, job: Job, whys: Mapping[int, str]) -> None:
        """Leave trees out of the job, for these reasons."""
        names = [job.site.trees.names[root] for root in job.site.trees.roots]
        job.excluded_switches += [f"the switch {names[tree]} is not used: {why}" for tree, why in whys.items()]
        self._registry.narrow(job, [tree for tree in range(len(names)) if tree not in whys])
