# SPDX-License-Identifier: Apache-2.0
"""The life of jobs, without I/O: events and a clock go in, effects come out of `take_effects`.

    gathering --all joined and heard--> installing --switch ready--> ready --all left--> finished
        \\________________________________\\___________________________\\--anything wrong--> aborted

A finished or aborted job holds its number and slots until `freed` says that every switch has forgotten it. `restore`
takes up jobs that were ready when an earlier controller ended; their ranks are away until they `rejoin`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import slots_at_each
from p4reduce_controller.aggregator import Heard, Layout, Parent, Placement
from p4reduce_controller.frames import Endpoint
from p4reduce_controller.numbers import JobNumbers, NumbersExhausted
from p4reduce_controller.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.trees import Misplaced, Trees

DEFAULT_SLOTS = 32
DEFAULT_TIMEOUT = 60.0
LONGEST_TIMEOUT = 86400.0
LONGEST_NAME = 200
LEAVE_GRACE = 2.0  # from the first rank's leaving until all must have left
LEASES_TO_RETURN = 2  # that ranks have to come back to a controller that was restarted

Session = object  # whatever the caller tells its streams apart by


class State(Enum):
    GATHERING = "gathering"
    INSTALLING = "installing"
    READY = "ready"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Tell:
    """Send `message`. When `last`, end the stream after it."""

    session: Session
    message: pb.ServerMessage
    last: bool = False


@dataclass(frozen=True)
class Install:
    """Put the job on every switch, reset its slots, then call `installed` or `failed`."""

    job: Job


@dataclass(frozen=True)
class Remove:
    """Take the job off every switch, with an ABORT to its group where `abort` is given, then call `freed`."""

    job: Job
    abort: pb.Abort | None


Effect = Tell | Install | Remove


@dataclass
class Member:
    """A rank that has joined. Times are seconds on the caller's clock.

    `session` is None while it is away: not back yet since the controller was restarted. `key`: the digest of the secret
    by which it is known then, or "".
    """

    rank: int
    session: Session | None
    last_sign: float
    nonce: int
    key: str = ""
    switch: str = ""  # the name of the one that it says it is at
    heard: dict[int, Heard] = field(default_factory=dict)  # by the number of the switch, one in each tree
    leaving: bool = False
    told: pb.Waiting | None = None


@dataclass
class Job:
    """`ranges` has one for each switch: slot s of the job is in those of tree s mod the number of trees.

    `placements`: what each switch that takes part is told, by its number, once all ranks have been heard.
    """

    name: str
    number: int
    generation: int
    world_size: int
    slots: int
    ranges: tuple[SlotRange, ...]
    first_seq: int
    lease: float
    started: float
    deadline: float  # of the gathering
    state: State = State.GATHERING
    members: dict[int, Member] = field(default_factory=dict)
    placements: dict[int, Placement] = field(default_factory=dict)
    leave_deadline: float | None = None

    @property
    def away(self) -> list[Member]:
        return [member for member in self.members.values() if member.session is None]

    def without(self, condition: Callable[[Member], bool]) -> list[int]:
        """Ranks that have not joined, or of which the condition does not hold."""
        return [
            rank for rank in range(self.world_size) if rank not in self.members or not condition(self.members[rank])
        ]


class Jobs:
    """All jobs of one switch, or of several trees of switches over which the slots of each are dealt.

    `child_heard` has to have told where every switch with a parent is before there are jobs.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[Endpoint],
        *,
        trees: Trees | None = None,
        lease: float = 5.0,
        default_slots: int = DEFAULT_SLOTS,
        numbers: JobNumbers | None = None,
        first_seq: Callable[[], int] = lambda: secrets.randbits(31) << 1,
        nonce: Callable[[], int] = lambda: secrets.randbits(64),
        returns: bool = False,
    ) -> None:
        """`layout`: of every switch. `addresses`: where workers send to, one a switch. `trees`: by default one each.

        `returns`: ranks are given a key, with which they can come back to a later controller that restores the jobs.
        """
        self.layout = layout
        self.addresses = tuple(addresses)
        self.lease = lease
        self.trees = trees or Trees([str(address) for address in addresses])
        self.pools = tuple(SlotPool(layout.slots) for _ in addresses)
        self.started = self.aborted = self.finished = self.joins = 0
        self._default_slots = min(default_slots, self._capacity)
        self._numbers = numbers or JobNumbers()
        self._first_seq = first_seq
        self._nonce = nonce
        self._returns = returns
        self._by_number: dict[int, Job] = {}  # all that hold slots
        self._by_name: dict[str, Job] = {}  # those that are not over
        self._seats: dict[Session, tuple[Job, Member]] = {}
        self._effects: list[Effect] = []
        self._children: dict[int, Heard] = {}
        self._aborts: dict[int, tuple[int, pb.Abort]] = {}  # by job number, the latest, with its generation

    def __iter__(self) -> Iterator[Job]:
        return iter(self._by_number.values())

    @property
    def _capacity(self) -> int:
        return len(self.trees.roots) * self.layout.slots

    @property
    def live(self) -> list[Job]:
        """Jobs that are not over."""
        return list(self._by_name.values())

    @property
    def children(self) -> Mapping[int, Heard]:
        """Where each switch with a parent was heard by it."""
        return self._children

    def take_effects(self) -> list[Effect]:
        """What is to be done now, in this order. Each effect is given once."""
        effects, self._effects = self._effects, []
        return effects

    # Events from ranks.

    def join(self, session: Session, join: pb.Join, now: float) -> None:
        job = self._by_name.get(join.job)
        problem = self._problem_of(join)
        if problem is None and job is None:
            try:
                job = self._found(join, now)
            except (PoolFull, NumbersExhausted) as error:
                problem = f"{error}; ask for fewer slots, or wait until other jobs end"
        if problem is None and job is not None:
            problem = self._quarrel_with(job, join)
        if problem is None and job is not None:
            self._seat(job, session, join, now)
            return
        name = join.job[:LONGEST_NAME]
        refusal = pb.Abort(
            rank=join.rank, reason=pb.JOIN_REFUSED, message=f"job {name!r}: rank {join.rank} is refused: {problem}"
        )
        self._tell(session, pb.ServerMessage(abort=refusal), last=True)
        # Ranks that still gather would wait in vain. A job that runs is not troubled by a latecomer.
        if job is not None and job.state is State.GATHERING:
            self._abort(job, refusal)

    def heartbeat(self, session: Session, now: float) -> None:
        if session in self._seats:
            self._seats[session][1].last_sign = now

    def rejoin(self, session: Session, rejoin: pb.Rejoin, now: float) -> None:
        """The rank is back, on a new stream."""
        job = self._by_number.get(rejoin.job)
        member = job.members.get(rejoin.rank) if job is not None and job.generation == rejoin.generation else None
        known = member is not None and bool(member.key) and hmac.compare_digest(_digest(rejoin.key), member.key)
        if job is None or member is None or not known or job.state is not State.READY:
            self._tell(session, pb.ServerMessage(abort=self._why_not(rejoin, stranger=not known)), last=True)
            return
        if member.session is not None:  # it noticed the break of its stream before we did
            del self._seats[member.session]
            moved = pb.Abort(rank=member.rank, reason=pb.JOIN_REFUSED, message="the rank is back on another stream")
            self._tell(member.session, pb.ServerMessage(abort=moved), last=True)
        member.session, member.last_sign, member.told = session, now, None
        self._seats[session] = (job, member)
        if job.leave_deadline is not None:  # which those who were away knew nothing of
            job.leave_deadline = now + LEAVE_GRACE
        self._tell(session, pb.ServerMessage(ready=self._ready(job, member)))

    def _why_not(self, rejoin: pb.Rejoin, *, stranger: bool) -> pb.Abort:
        generation, abort = self._aborts.get(rejoin.job, (None, None))
        if abort is not None and generation == rejoin.generation:
            return abort
        what = f"rank {rejoin.rank} cannot come back to job {rejoin.job}, generation {rejoin.generation}"
        job = self._by_number.get(rejoin.job)
        if job is None or job.generation != rejoin.generation:
            why = "the controller that is here now does not know the job"
        else:
            why = "its key is not that rank's" if stranger else f"the job is {job.state.value}"
        return pb.Abort(rank=rejoin.rank, reason=pb.JOIN_REFUSED, message=f"{what}: {why}")

    def leave(self, session: Session, now: float) -> None:
        self.heartbeat(session, now)
        if session not in self._seats:
            return
        job, member = self._seats[session]
        if job.state is not State.READY:
            self._blame(job, [member.rank], pb.LEFT_EARLY, "left before the job was ready")
            return
        member.leaving = True
        if all(other.leaving for other in job.members.values()):
            self._finish(job)
        elif job.leave_deadline is None:
            job.leave_deadline = now + LEAVE_GRACE

    def lost(self, session: Session, hint: str = "") -> None:
        """The rank's stream broke. After its Leave that is no news. `hint`: what else is wrong, for the others."""
        if session not in self._seats:
            return
        job, member = self._seats[session]
        if not member.leaving:
            self._blame(job, [member.rank], pb.WORKER_LOST, f"was lost: its connection to the controller broke{hint}")

    # Events from the switches.

    def child_heard(self, child: int, hello: Heard) -> None:
        """Where a switch is that has a parent, as the parent has heard it."""
        self._children[child] = hello

    def heard(self, switch: int, hello: Heard, now: float) -> bool:
        """True when the HELLO is that of a rank that the job still waits for in that switch's tree."""
        if self._leads_to_a_switch(switch, hello.port):
            return False  # it was meant for another switch, which is nearer to the rank
        job = self._by_number.get(hello.job)
        if job is None or job.state is not State.GATHERING or job.generation != hello.generation:
            return False
        member = job.members.get(hello.worker)
        if member is None or member.nonce != hello.nonce or switch not in self._could_hear(member):
            return False
        if self.trees.among(list(member.heard), self.trees.tree(switch)):
            return False
        member.heard[switch] = hello
        member.last_sign = max(member.last_sign, now)
        self._proceed(job)
        return True

    def installed(self, job: Job) -> None:
        if job.state is State.INSTALLING:
            job.state = State.READY
            for member in job.members.values():
                self._tell(member.session, pb.ServerMessage(ready=self._ready(job, member)))

    def failed(self, job: Job, why: str, reason: pb.AbortReason = pb.SWITCH_FAILED) -> None:
        """A switch could not be set up for the job, or has lost it."""
        self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    def freed(self, job: Job) -> None:
        """Every switch has forgotten the job."""
        del self._by_number[job.number]
        self._give_back(job.ranges)
        self._numbers.give_back(job.number)

    # Jobs of an earlier run.

    def restore(self, jobs: Iterable[Job], children: Mapping[int, Heard]) -> None:
        """Takes up jobs that were ready, before there are others. Raises ValueError for those that cannot have been."""
        self._children = dict(children)
        for job in sorted(jobs, key=lambda job: job.number):
            try:
                self._take_up(job)
            except (ValueError, Misplaced) as error:
                raise ValueError(f"job {job.name!r}: {error}") from None

    def _take_up(self, job: Job) -> None:
        problem = self._problem_of(pb.Join(job=job.name, world_size=job.world_size, slots=job.slots))
        if problem is not None:
            raise ValueError(problem)
        if job.name in self._by_name:
            raise ValueError("there are two of that name")
        roots = len(self.trees.roots)
        for rank, member in job.members.items():
            at = sorted(map(self.trees.tree, member.heard))
            if at != list(range(roots)) or not set(member.heard) <= set(self._could_hear(member)):
                raise ValueError(f"rank {rank} is not at one switch of each of the {roots} trees")
        if len(self._children) != len(self.trees.uplinks):
            raise ValueError(f"{len(self._children)} of {len(self.trees.uplinks)} switches with a parent are known")
        for pool, taken in zip(self.pools, job.ranges, strict=True):
            if taken.count != slots_at_each(job.slots, roots):
                raise ValueError(f"slots={job.slots}, of which {taken.count} at each switch")
            pool.take_at(taken)
        self._numbers.resume(job.number, job.generation)
        job.placements = self._place(job)
        self._by_number[job.number] = self._by_name[job.name] = job
        self.started += 1

    def expect_returns(self, now: float) -> None:
        """From now on, ranks that are away can come back."""
        for job in self.live:
            for member in job.away:
                member.last_sign = now

    # Events from the clock and from above.

    def tick(self, now: float) -> None:
        """Ends what is over time, and tells ranks whom they wait for. Call it every tenth of a second or so."""
        for job in self.live:
            seated = [member for member in job.members.values() if member.session is not None]
            silent = [m for m in seated if not m.leaving and now - m.last_sign > job.lease]
            patience = LEASES_TO_RETURN * job.lease
            if gone := [member.rank for member in job.away if now - member.last_sign > patience]:
                text = f"did not come back within {patience:g} s after the controller was restarted"
                self._blame(job, gone, pb.LEASE_EXPIRED, text)
            elif silent:
                age = max(now - member.last_sign for member in silent)
                text = f"gave no sign of life for {age:.1f} s, and the lease is {job.lease:g} s"
                self._blame(job, [member.rank for member in silent], pb.LEASE_EXPIRED, text)
            elif job.state is State.GATHERING and now >= job.deadline:
                self._give_up_gathering(job, now)
            elif job.leave_deadline is not None and now >= job.leave_deadline and not job.away:
                leavers = [rank for rank, member in job.members.items() if member.leaving]
                self._blame(job, leavers, pb.LEFT_EARLY, "left while other ranks stayed")
            else:
                self._tell_who_waits(job)

    def abort_all(self, reason: pb.AbortReason, why: str, *, but_ready: bool = False) -> None:
        for job in self.live:
            if not (but_ready and job.state is State.READY):
                self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    # Joining.

    def _problem_of(self, join: pb.Join) -> str | None:
        """What is wrong with the request by itself."""
        if not join.job or len(join.job) > LONGEST_NAME or not join.job.isprintable():
            return f"its job name must have 1 to {LONGEST_NAME} printable characters"
        if not 1 <= join.world_size <= self.trees.most_ranks:
            return f"world_size={join.world_size}, and 1 to {self.trees.most_ranks} are accepted"
        if join.rank >= join.world_size:
            return f"world_size={join.world_size} has ranks 0 to {join.world_size - 1}"
        if join.switch and join.switch not in self.trees.names:
            return f"its switch is {join.switch!r}, and there are {', '.join(self.trees.names)}"
        if join.slots > self._capacity:
            trees = len(self.trees.roots)
            have = "the switch has" if trees == 1 else f"the {trees} switches have"
            return f"slots={join.slots}, and {have} {self._capacity}"
        if not (math.isfinite(join.timeout_s) and 0 <= join.timeout_s <= LONGEST_TIMEOUT):
            return f"timeout_s={join.timeout_s}, and 0 to {LONGEST_TIMEOUT:g} are accepted"
        return None

    def _quarrel_with(self, job: Job, join: pb.Join) -> str | None:
        """What is wrong with the request in that job."""
        if job.state is not State.GATHERING:
            what = "joined it already" if join.rank in job.members else f"is not one of its {job.world_size}"
            return f"the job is {job.state.value} and this rank {what}; wait for its end or use another name"
        if join.world_size != job.world_size:
            others = _ranks(job.members)
            return f"it says world_size={join.world_size}, but {others} said {job.world_size}"
        if join.rank in job.members:
            return "this rank has joined already; every process of the job needs a rank of its own"
        wanted = join.slots or self._default_slots
        if wanted != job.slots:
            return f"it wants {wanted} slots, but {_ranks(job.members)} wanted {job.slots}"
        return None

    def _found(self, join: pb.Join, now: float) -> Job:
        slots = join.slots or self._default_slots
        ranges: list[SlotRange] = []
        try:
            for pool in self.pools:
                ranges.append(pool.take(slots_at_each(slots, len(self.trees.roots))))
            number, generation = self._numbers.take()
        except PoolFull as error:
            self._give_back(ranges)
            raise PoolFull(f"{error}{self._at(len(ranges))}") from None
        except NumbersExhausted:
            self._give_back(ranges)
            raise
        first_seq = self._first_seq() & 0xFFFFFFFE
        job = Job(
            name=join.job,
            number=number,
            generation=generation,
            world_size=join.world_size,
            slots=slots,
            ranges=tuple(ranges),
            first_seq=first_seq,
            lease=self.lease,
            started=now,
            deadline=math.inf,
        )
        self._by_number[number] = self._by_name[join.job] = job
        self.started += 1
        return job

    def _give_back(self, ranges: Iterable[SlotRange]) -> None:
        for pool, taken in zip(self.pools, ranges, strict=False):  # fewer of them where a later pool was full
            pool.give_back(taken)

    def _at(self, switch: int) -> str:
        """Names the switch where there is more than one."""
        return f" at the switch {self.addresses[switch]}" if len(self.pools) > 1 else ""

    def _seat(self, job: Job, session: Session, join: pb.Join, now: float) -> None:
        key = secrets.token_hex(16) if self._returns else ""
        member = Member(join.rank, session, now, self._nonce(), _digest(key) if key else "", switch=join.switch)
        job.members[join.rank] = member
        # The least patient rank decides: when it gives up, the job cannot come to be.
        job.deadline = min(job.deadline, now + (join.timeout_s or DEFAULT_TIMEOUT))
        self._seats[session] = (job, member)
        self.joins += 1
        assigned = pb.Assigned(
            job=job.number,
            generation=job.generation,
            worker=join.rank,
            slots=job.slots,
            lanes=self.layout.lanes,
            block_size=self.layout.block_size,
            first_seq=job.first_seq,
            hello_nonce=member.nonce,
            lease_s=job.lease,
            rejoin_key=key,
            aggregators=[self._endpoint(switch) for switch in self._could_hear(member)],
        )
        self._tell(session, pb.ServerMessage(assigned=assigned))

    def _proceed(self, job: Job) -> None:
        if job.without(self._heard_everywhere):
            return
        try:
            job.placements = self._place(job)
        except Misplaced as error:
            self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {error}"))
            return
        job.state = State.INSTALLING
        self._effects.append(Install(job))

    # Switches.

    def _endpoint(self, switch: int) -> pb.Endpoint:
        at = self.addresses[switch]
        return pb.Endpoint(ip=at.ip, udp_port=at.udp_port, mac=at.mac, tree=self.trees.tree(switch))

    def _could_hear(self, member: Member) -> list[int]:
        """The switches that a rank says HELLO to, tree after tree: all, or of a tree the one that it has named."""
        switches: list[int] = []
        for tree in range(len(self.trees.roots)):
            every = self.trees.among(range(len(self.pools)), tree)
            named = [switch for switch in every if self.trees.names[switch] == member.switch]
            switches += named or every
        return switches

    def _leads_to_a_switch(self, switch: int, port: int) -> bool:
        uplinks = self.trees.uplinks
        below = (
            self._children[child] for child, up in uplinks.items() if up.parent == switch and child in self._children
        )
        return (switch in uplinks and uplinks[switch].port == port) or any(child.port == port for child in below)

    def _heard_everywhere(self, member: Member) -> bool:
        return len(member.heard) == len(self.trees.roots)

    def _place(self, job: Job) -> dict[int, Placement]:
        """What each switch is told. Raises Misplaced."""
        placements = {}
        groups = set()
        for tree in range(len(self.trees.roots)):
            places = {rank: self.trees.among(list(one.heard), tree)[0] for rank, one in job.members.items()}
            nodes = self.trees.nodes(places)
            by_switch = {node.switch: node for node in nodes}
            groups.add(frozenset(node.ranks for node in nodes if node.ranks))
            for node in nodes:
                workers = [job.members[rank].heard[node.switch] for rank in node.ranks]
                workers += [self._children[child] for child in node.children]
                parent = None
                if node.parent is not None:
                    above = by_switch[node.parent]
                    index = len(above.ranks) + above.children.index(node.switch)
                    parent = Parent(self.trees.uplinks[node.switch].port, self.addresses[node.parent], index)
                placements[node.switch] = Placement(
                    job.number,
                    job.generation,
                    job.ranges[node.switch],
                    job.first_seq,
                    tuple(workers),
                    len(node.children),
                    parent,
                )
        if len(groups) > 1:
            raise Misplaced("ranks that share a switch in one tree do not in another, and they must in all or in none")
        return placements

    def _ready(self, job: Job, member: Member) -> pb.Ready:
        if not self.trees.uplinks:
            return pb.Ready()
        could = self._could_hear(member)
        switch = next(iter(member.heard))
        peers = [rank for rank, other in sorted(job.members.items()) if switch in other.heard]
        return pb.Ready(aggregators=sorted(could.index(at) for at in member.heard), peers=peers)

    # Waiting, and giving up.

    def _give_up_gathering(self, job: Job, now: float) -> None:
        waited = f"after {now - job.started:.1f} s"
        absent = job.without(lambda _: True)
        unheard = [rank for rank, member in sorted(job.members.items()) if not self._heard_everywhere(member)]
        parts = []
        if absent:
            parts.append(f"{_ranks(absent)} of {job.world_size} did not join")
        if unheard and not absent:
            parts += [self._unheard_in(job, tree) for tree in range(len(self.trees.roots))]
        blamed = absent or unheard
        text = "; ".join(part for part in parts if part)
        abort = pb.Abort(reason=pb.JOIN_TIMEOUT, message=f"job {job.name!r}: {waited}, {text}")
        if len(blamed) == 1:
            abort.rank = blamed[0]
        self._abort(job, abort)

    def _unheard_in(self, job: Job, tree: int) -> str:
        switches = self.trees.among(range(len(self.pools)), tree)
        members = sorted(job.members.items())
        unheard = [rank for rank, member in members if not self.trees.among(list(member.heard), tree)]
        if not unheard:
            return ""
        where = " or ".join(str(self.addresses[switch]) for switch in switches)
        return (
            f"{_ranks(unheard)} joined, but no HELLO from there reached the switch at {where}; "
            "check the address, the route and the switch's ports"
        )

    def _tell_who_waits(self, job: Job) -> None:
        if job.state is State.GATHERING:
            absent = job.without(lambda _: True)
            unheard = job.without(self._heard_everywhere)
            notice = pb.Waiting(what=pb.Waiting.JOIN if absent else pb.Waiting.HELLO, ranks=absent or unheard)
            waiting = list(job.members.values())
        elif job.state is State.INSTALLING:
            notice = pb.Waiting(what=pb.Waiting.SWITCH)
            waiting = list(job.members.values())
        elif job.leave_deadline is not None:
            notice = pb.Waiting(what=pb.Waiting.LEAVE, ranks=job.without(lambda member: member.leaving))
            waiting = [member for member in job.members.values() if member.leaving]
        else:
            return
        for member in waiting:
            if member.told != notice:
                member.told = notice
                self._tell(member.session, pb.ServerMessage(waiting=notice))

    # Ending.

    def _blame(self, job: Job, ranks: list[int], reason: pb.AbortReason, what: str) -> None:
        self._abort(job, pb.Abort(rank=min(ranks), reason=reason, message=f"job {job.name!r}: {_ranks(ranks)} {what}"))

    def _abort(self, job: Job, abort: pb.Abort) -> None:
        if job.state in (State.FINISHED, State.ABORTED):
            return
        installed = job.state is not State.GATHERING
        self._aborts[job.number] = (job.generation, abort)
        self.aborted += 1
        farewell = pb.ServerMessage(left=pb.Left())
        self._end(job, State.ABORTED, lambda member: farewell if member.leaving else pb.ServerMessage(abort=abort))
        if installed:
            self._effects.append(Remove(job, abort))
        else:
            self.freed(job)

    def _finish(self, job: Job) -> None:
        self.finished += 1
        self._end(job, State.FINISHED, lambda _: pb.ServerMessage(left=pb.Left()))
        self._effects.append(Remove(job, None))

    def _end(self, job: Job, state: State, last_words: Callable[[Member], pb.ServerMessage]) -> None:
        job.state = state
        del self._by_name[job.name]
        for member in job.members.values():
            self._seats.pop(member.session, None)
            self._tell(member.session, last_words(member), last=True)

    def _tell(self, session: Session | None, message: pb.ServerMessage, *, last: bool = False) -> None:
        """Who is away is told when it comes back."""
        if session is not None:
            self._effects.append(Tell(session, message, last))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _ranks(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0, 1, 5"."""
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"
