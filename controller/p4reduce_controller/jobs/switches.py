# SPDX-License-Identifier: Apache-2.0
"""The switches as jobs see them: their trees, which of them jobs can use, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS, problem_of
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees

_CORDONED = (SwitchState.DRAINING, SwitchState.CORDONED)


class Switches:
    """The switches for jobs. Here every switch can be used; a subclass that knows better overrides `conditions`.

    Numbers are the controller's.

    `site`: the site of jobs that begin from now on; the others keep theirs.
    `children`: where switches were heard by their parents, by the numbers of child and parent.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[Endpoint],
        trees: Trees | None = None,
        nodes: Sequence[int] = (),
        *,
        default_slots: int = DEFAULT_SLOTS,
    ) -> None:
        """Create the switches of a site.

        `layout`: of every switch.
        `addresses`: where workers send to, one per switch.
        `trees`: by default one per switch.
        `nodes`: the switch of each node of the trees, if some switches are in several trees.
        `default_slots`: for jobs that do not choose, if the switches have as many.
        """
        trees = trees or Trees([str(address) for address in addresses])
        nodes = tuple(nodes) or tuple(range(len(addresses)))
        self.site = Site(layout, tuple(addresses[switch] for switch in nodes), trees, numbers=nodes)
        self.children: dict[tuple[int, int], Heard] = {}
        self._default_slots = default_slots
        self._for_new: tuple[Site, frozenset[int], Site] | None = None

    def conditions(self, number: int) -> Iterable[Unavailable]:  # noqa: ARG002
        """Return everything that keeps jobs from that switch, the most serious first."""
        return ()

    def uplink_trouble(self, site: Site, at: int) -> Unavailable | None:  # noqa: ARG002
        """Return why the node does not reach its parent; None if nothing is known against it."""
        return None

    # Sites.

    @property
    def numbers(self) -> list[int]:
        """The controller's number of each node's switch."""
        return [self.site.number(at) for at in range(self.site.nodes)]

    @property
    def addresses(self) -> dict[int, Endpoint]:
        """The address of each switch of the site, by its number, in their order."""
        return dict(sorted(zip(self.numbers, self.site.addresses, strict=True)))

    def for_new(self) -> Site:
        """Return the site for a job that begins now: the switches that can be used."""
        out = frozenset(at for at, number in enumerate(self.numbers) if self._why_not(number, new=True))
        if self._for_new is None or self._for_new[:2] != (self.site, out):
            self._for_new = self.site, out, self.site.without(out) if out else self.site
        return self._for_new[2]

    def excluded_from(self, site: Site) -> list[str]:
        """Return texts about the switches that a job of that site lacks because they could not be used."""
        missing = [self.site.nodes_of(number)[0] for number in dict.fromkeys(self.numbers) if not site.nodes_of(number)]
        return self.unavailable(self.site, missing, new=True)

    def cordoned_at(self, site: Site) -> frozenset[int]:
        """Return the site indices of switches that take no new jobs, but are in the site nevertheless."""
        return frozenset(at for at in range(site.nodes) if self._find(site.number(at), *_CORDONED))

    def children_of(self, site: Site, number: int) -> dict[int, Heard]:
        """Return the ports at which this switch has heard its children, by the children's nodes."""
        pairs = {at: (site.number(at), number) for one in site.nodes_of(number) for at in site.trees.children(one)}
        return {at: self.children[pair] for at, pair in pairs.items() if pair in self.children}

    def children_at(self, site: Site) -> dict[int, Heard]:
        """Return the ports at which parents have heard their children, by the children's nodes."""
        pairs = {at: (site.number(at), site.number(up.parent)) for at, up in site.trees.uplinks.items()}
        return {at: self.children[pair] for at, pair in pairs.items() if pair in self.children}

    def slots_at(self, site: Site) -> int:
        return min(self._default_slots, site.capacity)

    # Problems.

    def problem_of(self, join: pb.Join, site: Site, *, new: bool) -> str | None:
        """Return why these switches cannot serve the rank. `new`: whether its job has not begun yet."""
        if problem := self._excluded(join, site) or problem_of(join, site, self.slots_at(site)):
            return problem
        unavailable = self.unreachable(site, [join.switch], new=new)
        return str(unavailable) if unavailable else None

    def unschedulable(self, joins: Iterable[pb.Join]) -> Unavailable | None:
        """Return why no switch takes a new job with these ranks; None if some can."""
        return self.unreachable(self.for_new(), {join.switch for join in joins}, new=True)

    def unreachable(self, site: Site, named: Iterable[str], *, new: bool = False) -> Unavailable | None:
        """Return why ranks at the `named` switches cannot be served: in some tree, no switch can be used for them.

        Spare trees do not matter.
        """
        for name in named:
            for tree in [tree for tree in range(len(site.trees.roots)) if tree not in site.trees.spare_trees]:
                could = site.trees.among(site.within_reach(name), tree)
                if all(self._why_not(site.number(switch), new=new) for switch in could):
                    return Unavailable("; ".join(self.unavailable(site, could, new=new)), SwitchState.UNSCHEDULABLE)
        return None

    def unavailable(self, site: Site, switches: Iterable[int], *, new: bool = False) -> list[str]:
        """Return a text for each of these switches that cannot be used. `new`: for a job that begins."""
        found = ((switch, self._why_not(site.number(switch), new=new)) for switch in switches)
        texts = [f"the switch {site.trees.names[switch]} cannot be used: {why}" for switch, why in found if why]
        return list(dict.fromkeys(texts))

    def briefly_unavailable(self, site: Site, switches: Iterable[int]) -> bool:
        """Return whether one of these switches has become unavailable only a moment ago."""
        return any(one.brief for switch in switches for one in self.conditions(site.number(switch)))

    def unavailable_to(self, job: Job) -> Unavailable | None:
        """Return why a switch of the job cannot be changed now, even if only for a moment."""
        names, indices = job.site.trees.names, sorted(job.ranges)
        found = ((at, self._find(job.site.number(at), SwitchState.NOT_READY)) for at in indices)
        whys = [f"the switch {names[at % job.site.nodes]} is unavailable: {why.reason}" for at, why in found if why]
        return Unavailable("; ".join(dict.fromkeys(whys))) if whys else None

    def unusable_trees(self, job: Job, needed: set[int]) -> dict[int, str]:
        """Return the trees that the job, whose ranks have all been heard, cannot have, and why.

        `needed`: the nodes that it needs.
        """
        site, children, whys = job.site, self.children_at(job.site), {}
        for tree in range(len(site.trees.roots)):
            nodes = site.trees.among(sorted(needed), tree)
            found = self.unavailable(site, [at for at in nodes if at not in job.cordoned])
            found += self.unavailable(site, [at for at in nodes if at in job.cordoned], new=True)
            below = [at for at in nodes if at in site.trees.uplinks and site.trees.uplinks[at].parent in nodes]
            found = found or [str(why) for why in (self.uplink_trouble(site, at) for at in below) if why]
            found = found or [unheard(site, at) for at in below if at not in children]
            if found:
                whys[tree] = "; ".join(found)
        return whys

    def _why_not(self, number: int, *, new: bool) -> Unavailable | None:
        keep_out = (SwitchState.NOT_READY, *_CORDONED) if new else (SwitchState.NOT_READY,)
        return next((one for one in self.conditions(number) if one.state in keep_out and not one.brief), None)

    def _find(self, number: int, *states: SwitchState) -> Unavailable | None:
        return next((one for one in self.conditions(number) if one.state in states), None)

    def _excluded(self, join: pb.Join, site: Site) -> str | None:
        """Return the reason if the rank asks for a switch or capacity that exists but is excluded from this job."""
        names = self.site.trees.names
        if join.switch in names and join.switch not in site.trees.names:
            now = "; ".join(self.unavailable(self.site, [names.index(join.switch)], new=True))
            return now or (
                f"the switch {join.switch} could not be used when the job began, so the job does not include it"
            )
        if site.capacity < join.slots <= self.site.capacity:
            why = "; ".join(self.unavailable(self.site, range(self.site.nodes), new=True))
            return f"slots={join.slots}, and {site.capacity} are available: {why}"
        return None


def unheard(site: Site, at: int) -> str:
    """Return a text about a node that its parent has not heard."""
    names, up = site.trees.names, site.trees.uplinks[at]
    return (
        f"the switch {names[at]} has not been heard by its parent {names[up.parent]}; check the cable at its port "
        f"{up.port}, and that both switches run"
    )
