# SPDX-License-Identifier: Apache-2.0
"""A job and its ranks, as the controller knows them.

A switch has *heard* a rank, or a switch below it, when a HELLO from there has arrived.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import list_ranks
from p4reduce_controller.switches.aggregator import Heard, Placement
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.switches.site import Site

REPORTS_JUDGED = 15  # the latest reports of a rank, of intervals with operations, by which its use of slots is judged
LEAST_REPORTS = 5  # of each worker, before its use of slots is judged

Session = object  # a hashable value by which the caller identifies a stream


class State(Enum):
    """The states of a job; `jobs.py` has the transitions."""

    GATHERING = "gathering"
    INSTALLING = "installing"
    READY = "ready"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass
class Member:
    """A rank that has joined. Times are seconds on the caller's clock.

    `session`: None while the rank is away: it has not come back since the controller was restarted.
    `away_since`: when the controller was restarted.
    `key`: the digest of the secret by which the rank is recognised when it comes back, or "".
    `short`: how many short HELLOs each switch has heard.
    """

    rank: int
    session: Session | None
    nonce: int
    key: str = ""
    switch: str = ""  # the name of the switch that the rank says it is at
    host: str = ""  # the same for the ranks with which it can share memory, and for no others; "" if there are none
    stream: pb.Stream = pb.UNSAID
    heard: dict[int, Heard] = field(default_factory=dict)  # by site index, one switch in each tree
    short: Counter[int] = field(default_factory=Counter)
    leaving: bool = False
    lingers: bool = False  # it leaves, but still suspends its slots and sends its packets again
    away_since: float = 0.0
    last_notice: pb.Waiting | None = None  # the latest message about what the job waits for, on its present stream
    heard_at: float = 0.0  # time of the latest message on its stream
    report: pb.Report | None = None  # the latest
    reported_at: float = 0.0
    rates: pb.Rates | None = None
    awaiting_s: float = 0.0  # how long it has waited so far for ranks that came later
    holds: bool = False  # whether it can pause its operations while the job's slots change
    moves: bool = False  # whether it can suspend the slots of a tree that is lost
    spares: bool = False  # whether it can have spare trees
    # The site indices of the aggregators that it was assigned, if the job has left some of their trees; -1 for these.
    offered: list[int] = field(default_factory=list)
    # Most slots used, one value per report.
    used: deque[int] = field(default_factory=lambda: deque(maxlen=REPORTS_JUDGED))

    @property
    def link(self) -> object:
        """A key that only ranks with a common stream have in common. It is known when the rank has been heard.

        Ranks can share a stream if they are on one host, behind the same ports of the same switches.
        """
        if not self.host or self.stream != pb.SHARED:
            return self.rank
        return self.host, frozenset((switch, heard.ports) for switch, heard in self.heard.items())


@dataclass(frozen=True)
class Roles:
    """The relations of ranks, once all have been heard: see `Job.leaders`, `Job.workers` and `Job.hosts`."""

    leaders: dict[int, int]
    workers: list[int]
    hosts: list[int]


@dataclass
class Move:
    """A change of a job's slots that is under way. Times are seconds on the clock of the jobs.

    `held`: the latest Held of each sending rank since it was asked to pause.
    `asked`: up to how many operations each of them was told to begin.
    `numbers`: the number of the Hold that told it so.
    `before`: the job's former slots by site index, from when all ranks pause until no switch has the job there.
    `slots_before`, `first_seq_before`: likewise, the former number of slots and the former first sequence number.
    """

    slots: int
    why: str
    since: float
    held: dict[int, pb.Held] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    before: dict[int, SlotRange] | None = None
    slots_before: int = 0
    first_seq_before: int = 0
    kept: bool = False  # a later controller would know that the job may be in its new slots
    done: bool = False  # every switch has it
    lost: str = ""  # why a switch lost the job before the change was kept


class TakeoverStage(Enum):
    """The stages of a takeover; `failover.py` has the transitions."""

    STORING = "storing"
    SUSPENDING = "suspending"
    INSTALLING = "installing"
    DONE = "done"
    FAILED = "failed"


class Rounds:
    """The rounds that ranks have told for some slots: the least and the most of each slot.

    Rounds are serial numbers (RFC 1982). Ranks are at most one round apart.
    """

    def __init__(self) -> None:
        self.least: list[int] = []
        self._most: list[int] = []

    def add(self, told: Sequence[int]) -> None:
        """Add the rounds of one rank. Raises ValueError if they are too far from those of another one."""
        if not self._most:
            self.least, self._most = list(told), list(told)
        for slot, (seq, least, most) in enumerate(zip(told, self.least, self._most, strict=True)):
            if (seq - least) % 2**32 >= 2**31:
                self.least[slot] = seq
            elif (seq - most) % 2**32 < 2**31:
                self._most[slot] = seq
            if (self._most[slot] - self.least[slot]) % 2**32 > 1:
                raise ValueError(f"its ranks are in rounds {[self.least[slot], self._most[slot]]} of one slot")


@dataclass
class Takeover:
    """The slots of a lost tree at the switches of another tree, `via`.

    `jobs`: for each thread of a rank, the number and generation in packets of these slots.
    `number`: identifies the Suspend that ranks get.
    `placements`: what the switches are told, by the site indices of the other tree.
    `suspended_at`: when ranks were told to suspend these slots, or were all back after that.
    `told`: the ranks that have told their rounds. `rounds`: what they have told.
    `lost`: why a switch has lost the new entries while others were still being written; "" if none has.
    `late`: whether a rank had left before the end, and cannot send its packets again.
    """

    tree: int
    via: int
    jobs: tuple[tuple[int, int], ...]
    number: int
    placements: dict[int, Placement]
    why: str
    since: float
    stage: TakeoverStage = TakeoverStage.STORING
    suspended_at: float = 0.0
    told: set[int] = field(default_factory=set)
    rounds: Rounds = field(default_factory=Rounds)
    lost: str = ""
    late: bool = False

    @property
    def under_way(self) -> bool:
        return self.stage not in (TakeoverStage.DONE, TakeoverStage.FAILED)


@dataclass
class Job:
    """A job: its number, its slots, its ranks and what its switches are told.

    Values by switch, here and in members, are by index in `site.for_threads`.

    `ranges`: the job's slots at each switch. Until all ranks have been heard, it has those of switches that every job
    needs. Slot s belongs to tree s modulo the number of trees.
    `placements`: what each switch that takes part is told, once all ranks have been heard.
    `spares`: what the switches of spare trees would be told, without slots and without the number of a takeover.
    `number`, `generation`: identify the job, for ranks that come back.
    `numbers`: the number and generation by which the switches of each tree know the job, thread after thread. Trees
    without a common switch share them.
    `site`: the switches that were available to the job when it began.
    `excluded_switches`: texts for operators about the switches that could not be used then.
    `cordoned`: the indices of cordoned switches that `site` contains nevertheless.
    `children`: where each switch with a parent was heard by its parent, when all ranks had been heard.
    `most_slots`: the number of slots that the job was admitted with, and may have again after it has given some back.
    `timeout`: the shortest timeout of its ranks, in seconds, which may extend steps at switches beyond the default.
    It is 0 if it is unknown after a restart.
    """

    name: str
    number: int
    generation: int
    world_size: int
    slots: int
    ranges: dict[int, SlotRange]
    first_seq: int
    rejoin_time: float
    started: float
    deadline: float  # end of the gathering
    abort_secret: int = field(repr=False)  # 64 bits that only its ranks are told; every ABORT to them contains it
    site: Site = field(repr=False)
    state: State = State.GATHERING
    members: dict[int, Member] = field(default_factory=dict)
    placements: dict[int, Placement] = field(default_factory=dict)
    spares: dict[int, Placement] = field(default_factory=dict, repr=False)
    children: dict[int, Heard] = field(default_factory=dict, repr=False)
    leave_deadline: float | None = None
    numbers: tuple[tuple[int, int], ...] = ()
    threads: int = 1
    unheard: set[int] = field(default_factory=set, repr=False)  # ranks that some tree has not heard yet
    unanswered: dict[int, int] = field(default_factory=dict)  # by rank, the half that it asks about
    looking: bool = False  # a query to the switches for one of these is in flight
    excluded_switches: list[str] = field(default_factory=list)
    cordoned: frozenset[int] = frozenset()
    timeout: float = 0.0
    uncounted: tuple[list[int], float] = ([], -math.inf)  # ranks missing in the latest answer to a question; its time
    tenant: str = ""  # the owner; a job's name is unique among the jobs of its tenant
    user: str = ""  # the user whose rank joined first
    least_busy: tuple[float, float] = (-math.inf, 0.0)  # a time, and the least `busy` in its members' rates then
    over_since: float = 0.0
    charged: float = 0.0  # the time up to which its slots are in the tenant's slot-hours
    ports_down: list[str] = field(default_factory=list)  # the ports it needs that are down, as its ranks were told
    most_slots: int = 0
    move: Move | None = field(default=None, repr=False)
    cooldown_until: float = -math.inf  # its slots do not change before
    failed_pauses: int = 0  # how many times in a row its ranks did not all pause
    installed: bool = False  # on every switch, by this controller
    endpoints: dict[str, list[pb.Endpoint]] = field(default_factory=dict, repr=False)  # by the name of a rank's switch
    spares_awaited_since: float = math.inf  # when all other switches had heard its ranks
    next_notice: float = -math.inf  # its ranks are not told of other changes of `awaited` before
    noticed: tuple[pb.Waiting.For, int] | None = None  # what its ranks wait for, and how many wait, as they were told
    lost_trees: set[int] = field(default_factory=set)  # whose slots are elsewhere
    not_taken_over: str = ""  # why slots of a tree that is lost cannot be elsewhere, as was logged
    stranded_at: float | None = None  # when all ranks were back after a restart, but slots of lost trees nowhere
    takeovers: list[Takeover] = field(default_factory=list, repr=False)  # by this controller, earliest first
    _roles: Roles | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.unheard |= set(range(self.world_size))

    @property
    def numbered_by_tree(self) -> bool:
        """Whether some threads have several numbers, so that ranks must know the number at each aggregator."""
        return len(set(self.numbers)) > self.threads

    @property
    def every_number(self) -> list[tuple[int, int]]:
        """The job's numbers and generations, each once, first the one that identifies it."""
        return list(dict.fromkeys([(self.number, self.generation), *self.numbers]))

    @property
    def trees(self) -> int:
        """The number of trees of each thread. Thread t has those from t times this number on."""
        return len(self.site.trees.roots)

    @property
    def numbers_at_switches(self) -> list[tuple[int, int]]:
        """Every number and generation by which a switch may know the job."""
        return [*self.every_number, *(pair for takeover in self.takeovers for pair in takeover.jobs)]

    def takeover_of(self, tree: int) -> Takeover | None:
        """Return the latest takeover of the slots of a tree of the first thread, and of the same tree of the others."""
        return next((one for one in reversed(self.takeovers) if one.tree == tree), None)

    def placements_of(self, tree: int) -> dict[int, Placement]:
        """Return what the switches that have the slots of a tree of a thread now are told, by site index.

        For a spare tree, return what they would be told.
        """
        placements, thread = self.placements | self.spares, tree // self.trees
        takeover = self.takeover_of(tree % self.trees)
        if takeover is not None and takeover.stage is TakeoverStage.DONE:
            placements, tree = takeover.placements, thread * self.trees + takeover.via
        among = self.site.for_threads(self.threads).trees.among(list(placements), tree)
        return {at: placements[at] for at in among}

    @property
    def moving(self) -> bool:
        """Whether a switch may still have the job in its former slots."""
        return self.move is not None and self.move.before is not None

    @property
    def in_memory(self) -> bool:
        """Whether all ranks share memory, so that none of them sends."""
        return len(set(self.hosts)) == 1

    @property
    def movable(self) -> bool:
        """Whether the job's slots can be changed while it runs."""
        ready = self.state is State.READY and self.leave_deadline is None and not self.away and self.move is None
        # Threads or trees would move within one switch, where the new slots of one may be former slots of another.
        once = len(self.holds) == len(self.ranges)
        return (
            ready
            and once
            and not self.lost_trees
            and (self.in_memory or all(self.members[rank].holds for rank in self.workers))
        )

    @property
    def used_slots(self) -> int | None:
        """The most slots that its latest operations have used; None if there are too few reports."""
        if self.in_memory:
            return 0
        reports = [self.members[rank].used for rank in self.workers]
        if any(len(one) < LEAST_REPORTS for one in reports):
            return None
        return max(max(one) for one in reports)

    @property
    def holds(self) -> set[int]:
        """The numbers of the switches where it has slots."""
        takeovers = (at for one in self.takeovers for at in one.placements)
        return {self.site.number(at) for at in (*self.ranges, *takeovers)}

    @property
    def spare_names(self) -> str:
        return ", ".join(self.site.trees.names[root] for root in sorted(self.site.trees.spares))

    @property
    def is_at_spares(self) -> bool:
        """Whether it began at spares, since no other switch could be used."""
        return bool(self.site.trees.spares) and not self.site.trees.spare_trees

    @property
    def over(self) -> bool:
        return self.state in (State.FINISHED, State.ABORTED)

    @property
    def absent(self) -> list[int]:
        """The ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    @property
    def away(self) -> list[Member]:
        return [member for member in self.members.values() if member.session is None]

    @property
    def leaders(self) -> dict[int, int]:
        """For each rank, the rank that sends for it: the lowest of those that share its stream.

        It is known when all ranks have been heard.
        """
        return self._roles.leaders if self._roles else self._leaders()

    def freeze_roles(self) -> None:
        """Freeze the roles of the ranks, which follow from where all ranks have been heard."""
        self._roles = None
        leaders = self._leaders()
        workers = [rank for rank, leader in leaders.items() if rank == leader]
        self._roles = Roles(leaders, workers, self.hosts)

    def _leaders(self) -> dict[int, int]:
        lowest: dict[object, int] = {}
        known = all(member.stream != pb.UNSAID for member in self.members.values())
        return {
            rank: lowest.setdefault(member.link if known else rank, rank)
            for rank, member in sorted(self.members.items())
        }

    @property
    def workers(self) -> list[int]:
        """The ranks that send. They are known when all ranks have been heard."""
        if self._roles:
            return self._roles.workers
        return [rank for rank, leader in self.leaders.items() if rank == leader]

    def workers_at(self, switch: int) -> list[int]:
        """Return the workers at that switch; a rank's index in the list is its worker number there."""
        return [rank for rank in self.workers if switch in self.members[rank].heard]

    @property
    def hosts(self) -> list[int]:
        """A number for each rank, equal for ranks that can share memory; [] if no rank can."""
        if self._roles:
            return self._roles.hosts
        if not any(member.host for member in self.members.values()):
            return []
        numbers: dict[object, int] = {}
        keys = (member.host or rank for rank, member in sorted(self.members.items()))
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def blame(self, ranks: Iterable[int], reason: pb.AbortReason, what: str) -> pb.Abort:
        ranks = list(ranks)
        return pb.Abort(rank=min(ranks), reason=reason, message=f"job {self.name!r}: {list_ranks(ranks)} {what}")
