# SPDX-License-Identifier: Apache-2.0
"""What the service asks of a switch. `switch.P4RuntimeSwitch` is the real one; tests have another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from p4reduce.protocol.packet import Codec
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange


@dataclass
class ControlCounts:
    """rpc_errors: calls that failed, by gRPC's code. cpu_drops: packets between the switch's CPU port and the
    controller that came to nothing, by why."""

    rpc_errors: Counter[str] = field(default_factory=Counter)
    cpu_drops: Counter[str] = field(default_factory=Counter)


Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = ("in", "out")
DOWN = ("DOWN", "LOWER_LAYER_DOWN", "NOT_PRESENT")  # states of a port, as OpenConfig calls them


class SwitchError(Exception):
    """The switch did not do what was asked; the message says what and why."""


class SwitchUnavailable(SwitchError):
    """There is no connection to the switch."""


class Superseded(SwitchError):
    """Another controller is the switch's primary."""


_IPV4_AND_UDP = 20 + 8  # bytes of headers


@dataclass(frozen=True)
class Layout:
    """The shape of the aggregator program: blocks a packet, values a block, slots of the whole switch."""

    lanes: int
    block_size: int
    slots: int

    @property
    def mtu(self) -> int:
        """The least of links that carry the program's packets: bytes of the longest with its IPv4 header."""
        return Codec(self.lanes, self.block_size).largest + _IPV4_AND_UDP


@dataclass(frozen=True)
class Heard:
    """A HELLO that reached the switch: on which port, from whom, and what it claims.

    full: as long as any packet. short: not, though its sender sends full ones, too.
    """

    port: int
    sender: Endpoint
    job: int
    generation: int
    worker: int
    nonce: int
    full: bool = False
    short: bool = False


@dataclass(frozen=True)
class Parent:
    """The switch above: behind which port it is, where packets to it go, and as which of its workers this one sends."""

    port: int
    endpoint: Endpoint
    worker: int


@dataclass(frozen=True)
class Placement:
    """A job as the switch knows it. `workers[i]` is where worker i was heard; the last `children` are switches.

    Without a `parent` the switch is the root of the job's tree. `hosts`: MAC addresses, and on which port they are.
    `abort_secret`: what shows the ranks that an ABORT is the controller's.
    """

    job: int
    generation: int
    slots: SlotRange
    first_seq: int
    workers: tuple[Heard, ...]
    children: int = 0
    parent: Parent | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    abort_secret: int = field(default=0, repr=False)

    @property
    def has_ranks(self) -> bool:
        return len(self.workers) > self.children

    @property
    def group(self) -> int:
        """Multicast group of the job: its number."""
        return self.job


@dataclass(frozen=True)
class Counted:
    """As a switch counts; bytes are those of frames."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class HalfState:
    """What a QUERY tells of a slot half."""

    half: int
    seq: int
    bitmap: int
    fingerprint: int


class Listener(Protocol):
    """Told what happens at the switch; not of a lost connection, as the data plane goes on without one."""

    def awaits(self, nonce: int) -> bool:
        """Whether a HELLO with this nonce would be news to anyone."""

    def heard(self, hello: Heard) -> None: ...

    def connected(self, lost_jobs: frozenset[int], *, restarted: bool) -> None:
        """The switch is (again) in hand. Entries of `lost_jobs` were gone from it, and where it was `restarted`, its
        program too."""

    def ports_changed(self) -> None:
        """Some are up, or down, that were not; or it is not known any more."""


class Aggregator(Protocol):
    """A switch that aggregates. Every method may raise SwitchError, and has a deadline of its own."""

    @property
    def layout(self) -> Layout: ...

    @property
    def address(self) -> Endpoint:
        """Where workers send to."""

    @property
    def target(self) -> str:
        """Where the switch itself is reached, for people."""

    @property
    def unavailable(self) -> Unavailable | None:
        """Why the switch cannot be asked anything now."""

    @property
    def counts(self) -> ControlCounts: ...

    @property
    def ports(self) -> Mapping[int, str]:
        """What OpenConfig calls the state of each, as "UP" and "DOWN"; {} where that is not known."""

    @property
    def ports_unknown(self) -> str:
        """Why it is not, or ""."""

    def expect(self, job: Placement) -> None:
        """Before `start`: an earlier controller has installed that job, which carries on."""

    async def look(self, timeout: float) -> None:
        """Before `start`: connects and looks, and changes nothing. Raises SwitchUnavailable, or Superseded where
        another controller is the primary and shall not give way."""

    async def start(self, listener: Listener, timeout: float) -> None:
        """Connect, become primary, and clear what an earlier controller left, but for jobs that were expected.

        Raises SwitchUnavailable when that has taken too long. It goes on then, and mends later losses of the
        connection, until `close`.
        """

    async def close(self, *, keep: bool = False) -> None:
        """Disconnects, after taking every entry off the switch unless they are to stay."""

    async def wait_connected(self) -> None:
        """Or given up."""

    def give_up(self) -> None:
        """It is away, and is not waited for any more: what it holds is nobody's concern."""

    @property
    def given_up(self) -> bool: ...

    async def say_hello(self, port: int, to: Endpoint, worker: int, nonce: int, *, short: bool = False) -> None:
        """Send a HELLO of the switch's own out of a port, of job 0: a full one, or a `short` one."""

    async def install(self, job: Placement) -> None:
        """Admission and delivery entries, the multicast group, and the way to the parent."""

    async def reset(self, job: Placement, timeout: float) -> None:
        """Make every half of the job's slots ready for its first round; return when all have acknowledged.

        timeout: seconds that it may take at least; a large pool has more.
        """

    async def fence(self, job: Placement) -> None:
        """Remove the admission entries: from now on nothing reaches the job's slots."""

    async def abort(self, job: Placement, worker: int | None, reason: int) -> None:
        """Multicasts ABORT to the job's group."""

    async def forget(self, job: Placement) -> None:
        """Remove the rest of what `install` made."""

    async def query(self, half: int) -> HalfState: ...

    async def set_loss(self, port: int, direction: Direction, rate: float) -> None: ...

    @property
    def loss_rates(self) -> Mapping[tuple[int, Direction], float]: ...

    async def outcomes(self) -> dict[str, int]:
        """Packets to the aggregator, by what became of them; and as `forged`, frames to others in the switch's name."""

    async def job_traffic(self) -> dict[tuple[int, int], Counted]:
        """What the members of each job that the switch knows have sent to it, by the job's number and generation; {}
        where it does not count that."""

    async def losses(self) -> dict[tuple[int, Direction], int]:
        """Packets lost on purpose."""
