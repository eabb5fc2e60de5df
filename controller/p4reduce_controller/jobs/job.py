# SPDX-License-Identifier: Apache-2.0
"""A job and its ranks, as the controller knows them."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.switches.aggregator import Heard, Placement
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.switches.site import Site

REPORTS = 15  # of a rank, in which it has begun operations, by which what it needs is judged
LEAST_REPORTS = 5

Session = object  # whatever the caller tells its streams apart by


class State(Enum):
    GATHERING = "gathering"
    INSTALLING = "installing"
    READY = "ready"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass
class Member:
    """A rank that has joined. Times are seconds on the caller's clock.

    `session` is None while it is away: not back yet since the controller was restarted, which was at `away_since`.
    `key`: the digest of the secret by which it is known then, or "". `short`: how many
    short HELLOs each switch has heard.
    """

    rank: int
    session: Session | None
    nonce: int
    key: str = ""
    switch: str = ""  # the name of the one that it says it is at
    host: str = ""  # what it has in common with those ranks alone with which it can share memory; "" for none
    stream: pb.Stream = pb.UNSAID
    heard: dict[int, Heard] = field(default_factory=dict)  # by the number of the switch, one in each tree
    short: Counter[int] = field(default_factory=Counter)
    leaving: bool = False
    away_since: float = 0.0
    told: pb.Waiting | None = None
    heard_at: float = 0.0  # anything, on its stream
    report: pb.Report | None = None  # the latest
    reported_at: float = 0.0
    rates: pb.Rates | None = None
    awaiting_s: float = 0.0  # that it has waited so far for ranks that came later
    holds: bool = False  # its operations, while slots of its job are changed
    used: deque[int] = field(default_factory=lambda: deque(maxlen=REPORTS))  # slots at most, of its latest reports

    @property
    def link(self) -> object:
        """What it has in common, when it has been heard, with those ranks alone with which it can share a stream: those
        of its host behind the same ports of the same switches."""
        if not self.host or self.stream != pb.SHARED:
            return self.rank
        return self.host, frozenset((switch, heard.port) for switch, heard in self.heard.items())


@dataclass(frozen=True)
class Roles:
    """What ranks are to each other, once all have been heard: see `Job.leaders`, `Job.workers` and `Job.hosts`."""

    leaders: dict[int, int]
    workers: list[int]
    hosts: list[int]


@dataclass
class Move:
    """The job is to have other slots. Times are seconds on the clock of the jobs.

    `held`: what the ranks that send have said since they were asked to hold; `asked`: how many operations each was told
    to begin, and `numbers`: in which Hold. `before`: its former slots, by its places, from when all hold until no
    switch has it there; `slots_before` and `first_seq_before` likewise.
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
    kept: bool = False  # a later controller would know that it may be there
    done: bool = False  # every switch has it
    lost: str = ""  # why some switch had it no more before it was kept


@dataclass
class Job:
    """`ranges`: its slots at each switch, by the switch's number; slot s is in those of tree s mod the number of trees.

    Before all ranks have been heard, it only has those of switches that every job needs. `placements`: what each switch
    that takes part is told, by its number, once all ranks have been heard. `more_numbers`: numbers and generations by
    which switches know the shares of its ranks' threads but the first. `site`: the switches that there were for it
    when it began. What is by switch, here and of members, is by the places of `site.for_threads`. `excluded_switches`:
    what could not be used then, for people; `cordoned`: the places of those that are in `site` all the same.
    `children`: where each switch with a parent was heard by it, when all ranks had been. `most_slots`: that it was let
    in with, and may have again where it has given some back. `timeout`: the shortest of its ranks' limits, in seconds,
    by which steps at switches may last longer than by default; 0 where it is not known, after a restart.
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
    deadline: float  # of the gathering
    abort_secret: int = field(repr=False)  # 64 bits that only its ranks are told, and every ABORT to them has
    site: Site = field(repr=False)
    state: State = State.GATHERING
    members: dict[int, Member] = field(default_factory=dict)
    placements: dict[int, Placement] = field(default_factory=dict)
    children: dict[int, Heard] = field(default_factory=dict, repr=False)
    leave_deadline: float | None = None
    more_numbers: tuple[tuple[int, int], ...] = ()
    unanswered: dict[int, int] = field(default_factory=dict)  # by rank, the half that it asks about
    looking: bool = False  # into the switches, for one of these
    excluded_switches: list[str] = field(default_factory=list)
    cordoned: frozenset[int] = frozenset()
    timeout: float = 0.0
    uncounted: tuple[list[int], float] = ([], -math.inf)  # ranks, where one asked for itself, and when that was
    tenant: str = ""  # whose it is; among the tenant's jobs alone the name is its own
    user: str = ""  # whose rank came first
    over_since: float = 0.0
    charged: float = 0.0  # until when its slots are in the tenant's slot-hours
    ports_down: list[str] = field(default_factory=list)  # that it needs, as its ranks were told
    most_slots: int = 0
    move: Move | None = field(default=None, repr=False)
    cooldown_until: float = -math.inf  # its slots are left as they are
    held_in_vain: int = 0  # how often in a row
    installed: bool = False  # on every switch, by this controller
    _settled: Roles | None = field(default=None, repr=False, compare=False)

    @property
    def numbers(self) -> tuple[tuple[int, int], ...]:
        """Numbers and generations, thread after thread."""
        return ((self.number, self.generation), *self.more_numbers)

    @property
    def threads(self) -> int:
        return len(self.numbers)

    @property
    def moving(self) -> bool:
        """Some switch may have it in its former slots."""
        return self.move is not None and self.move.before is not None

    @property
    def in_memory(self) -> bool:
        """All ranks share memory, and send nothing."""
        return len(set(self.hosts)) == 1

    @property
    def movable(self) -> bool:
        """Its slots can be changed while it runs."""
        ready = self.state is State.READY and self.leave_deadline is None and not self.away and self.move is None
        # Several threads would be moved within one switch, where the new slots of one are the former ones of another.
        return (
            ready and self.threads == 1 and (self.in_memory or all(self.members[rank].holds for rank in self.workers))
        )

    @property
    def used_slots(self) -> int | None:
        """How many of them its latest operations have used at most; None where that is not known well enough."""
        if self.in_memory:
            return 0
        reports = [self.members[rank].used for rank in self.workers]
        if any(len(one) < LEAST_REPORTS for one in reports):
            return None
        return max(max(one) for one in reports)

    @property
    def holds(self) -> set[int]:
        return {self.site.number(at) for at in self.ranges}

    @property
    def over(self) -> bool:
        return self.state in (State.FINISHED, State.ABORTED)

    @property
    def absent(self) -> list[int]:
        """Ranks that have not joined."""
        return self.without(lambda _: True)

    @property
    def away(self) -> list[Member]:
        return [member for member in self.members.values() if member.session is None]

    @property
    def leaders(self) -> dict[int, int]:
        """Of each rank, the one that sends for it: the lowest of those that share its stream. Known when all have been
        heard."""
        return self._settled.leaders if self._settled else self._leaders()

    def settle(self) -> None:
        """All ranks have been heard, and what follows from where they are holds from now on."""
        self._settled = None
        leaders = self._leaders()
        workers = [rank for rank, leader in leaders.items() if rank == leader]
        self._settled = Roles(leaders, workers, self.hosts)

    def _leaders(self) -> dict[int, int]:
        lowest: dict[object, int] = {}
        known = all(member.stream != pb.UNSAID for member in self.members.values())
        return {
            rank: lowest.setdefault(member.link if known else rank, rank)
            for rank, member in sorted(self.members.items())
        }

    @property
    def workers(self) -> list[int]:
        """The ranks that send, likewise."""
        if self._settled:
            return self._settled.workers
        return [rank for rank, leader in self.leaders.items() if rank == leader]

    def workers_at(self, switch: int) -> list[int]:
        """Those at that switch, each in its place as a worker."""
        return [rank for rank in self.workers if switch in self.members[rank].heard]

    @property
    def hosts(self) -> list[int]:
        """A number for each rank, the same for those that can share memory; [] where none says that it can."""
        if self._settled:
            return self._settled.hosts
        if not any(member.host for member in self.members.values()):
            return []
        numbers: dict[object, int] = {}
        keys = (member.host or rank for rank, member in sorted(self.members.items()))
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def without(self, condition: Callable[[Member], bool]) -> list[int]:
        """Ranks that have not joined, or of which the condition does not hold."""
        return [
            rank for rank in range(self.world_size) if rank not in self.members or not condition(self.members[rank])
        ]

    def blame(self, ranks: Iterable[int], reason: pb.AbortReason, what: str) -> pb.Abort:
        ranks = list(ranks)
        return pb.Abort(rank=min(ranks), reason=reason, message=f"job {self.name!r}: {list_ranks(ranks)} {what}")


def list_ranks(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0, 1, 5"."""
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"
