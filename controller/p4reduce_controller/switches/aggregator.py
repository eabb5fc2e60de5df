# SPDX-License-Identifier: Apache-2.0
"""The interface of a switch for the service.

`P4RuntimeSwitch` implements it; tests have an implementation of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from p4reduce.protocol.packet import Codec
from p4reduce.transport.frames import ip_and_udp_bytes
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange


@dataclass
class ControlCounts:
    """Counters of the connection between the controller and a switch.

    rpc_errors: failed calls, by gRPC status code.
    cpu_drops: packets between the switch's CPU port and the controller that were dropped, by reason.
    """

    rpc_errors: Counter[str] = field(default_factory=Counter)
    cpu_drops: Counter[str] = field(default_factory=Counter)


Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = ("in", "out")
DOWN = ("DOWN", "LOWER_LAYER_DOWN", "NOT_PRESENT")  # states of a port, as OpenConfig calls them


class SwitchError(Exception):
    """An error: the switch did not do what was asked. The message says what and why."""


class SwitchUnavailable(SwitchError):
    """An error: there is no connection to the switch."""


class Superseded(SwitchError):
    """An error: another controller is the switch's primary."""


@dataclass(frozen=True)
class Layout:
    """The shape of the aggregator program: blocks per packet, values per block, and slots of the whole switch."""

    lanes: int
    block_size: int
    slots: int

    def mtu(self, ip: str) -> int:
        """Return the smallest MTU that carries the program's longest packet to this address, in bytes."""
        return Codec(self.lanes, self.block_size).largest + ip_and_udp_bytes(ip)


@dataclass(frozen=True)
class Heard:
    """A HELLO that reached the switch: its port, its sender, and what it claims.

    vlan: the VLAN of its tag; 0 if it had none.
    lag: the ports of the group that its port belongs to, if it belongs to any.
    full: whether it is as long as the longest packet.
    short: whether it is shorter, from a sender that sends full ones too.
    """

    port: int
    sender: Endpoint
    job: int
    generation: int
    worker: int
    nonce: int
    full: bool = False
    short: bool = False
    lag: tuple[int, ...] = ()
    vlan: int = 0

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports at which packets of the sender may arrive."""
        return self.lag or (self.port,)

    @property
    def where(self) -> str:
        """Its port and VLAN, for a message."""
        return f"port {self.port} in VLAN {self.vlan}" if self.vlan else f"port {self.port}"

    def has_moved(self, before: Heard) -> bool:
        """Return whether packets of the sender arrive at a port or in a VLAN where `before` was not heard."""
        return self.port not in before.ports or self.vlan != before.vlan


Children = Mapping[tuple[int, int], Heard]
"""Where switches were heard by their parents, by the controller's numbers of child and parent."""


@dataclass(frozen=True)
class Parent:
    """The parent of a switch: the port toward it, the address of its packets, and this switch's worker number there."""

    port: int
    endpoint: Endpoint
    worker: int


@dataclass(frozen=True)
class Placement:
    """A job as the switch knows it. `workers[i]` is where worker i was heard; the last `children` of them are switches.

    `parent`: None if the switch is the root of the job's tree.
    `hosts`: MAC addresses and the port of each.
    `abort_secret`: proves to the ranks that an ABORT is the controller's.
    `rounds`: the first round of each slot, if it is not `first_seq` for all.
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
    rounds: tuple[int, ...] = ()

    @property
    def has_ranks(self) -> bool:
        return len(self.workers) > self.children

    @property
    def group(self) -> int:
        """The multicast group of the job: its number."""
        return self.job


@dataclass(frozen=True)
class Counted:
    """Counters of a switch. Bytes are those of frames."""

    packets: int
    bytes: int


@dataclass(frozen=True)
class HalfState:
    """The state of a slot half, as the answer to a QUERY tells it."""

    half: int
    seq: int
    bitmap: int
    fingerprint: int


class Listener(Protocol):
    """A listener to what happens at the switch.

    It does not hear of a lost connection, which the data plane survives.
    """

    def awaits(self, nonce: int) -> bool:
        """Return whether a HELLO with this nonce would be news."""

    def on_hello(self, hello: Heard) -> None: ...

    def connected(self, lost_jobs: frozenset[int], *, restarted: bool) -> None:
        """Handle that the controller controls the switch, for the first time or again.

        `lost_jobs`: jobs whose entries were gone from the switch.
        `restarted`: whether its program was gone too.
        """

    def ports_changed(self) -> None:
        """Handle that ports have gone up or down, or that their state is no longer known."""


class Aggregator(Protocol):
    """A switch that aggregates. Every method may raise SwitchError, and has a deadline of its own."""

    @property
    def layout(self) -> Layout: ...

    @property
    def knows_vlans(self) -> bool:
        """Whether its program admits workers in VLANs."""

    @property
    def knows_ipv6(self) -> bool:
        """Whether its program knows IPv6 addresses, of the switch and of workers."""

    @property
    def address(self) -> Endpoint:
        """The address that workers send to."""

    @property
    def target(self) -> str:
        """The address of the switch's P4Runtime server, as users write it."""

    @property
    def unavailable(self) -> Unavailable | None:
        """The reason why the switch cannot be asked anything now."""

    @property
    def counts(self) -> ControlCounts: ...

    @property
    def ports(self) -> Mapping[int, str]:
        """The state of each port, as OpenConfig calls it, such as "UP" and "DOWN"; {} if unknown."""

    @property
    def ports_unknown(self) -> str:
        """The reason why the ports are unknown, or ""."""

    def expect(self, job: Placement) -> None:
        """Note before `start` that an earlier controller has installed that job, which runs on."""

    async def look(self, timeout: float) -> None:
        """Connect before `start`, read the switch's state, and change nothing.

        Raises SwitchUnavailable, or Superseded if another controller is the primary and must not be replaced.
        """

    async def start(self, listener: Listener, timeout: float) -> None:
        """Connect, become primary, and remove what an earlier controller left, except for expected jobs.

        Raises SwitchUnavailable if that takes too long. Connecting goes on then, and the connection is restored
        whenever it is lost, until `close`.
        """

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect, after removing every entry from the switch unless `keep` is set."""

    async def wait_connected(self) -> None:
        """Wait until the switch is connected or given up."""

    def give_up(self) -> None:
        """Stop waiting for a switch that is away. What it holds no longer matters."""

    @property
    def given_up(self) -> bool: ...

    async def say_hello(
        self, port: int, to: Endpoint, worker: int, nonce: int, *, short: bool = False, vlan: int = 0
    ) -> None:
        """Send a HELLO of the switch's own, of job 0, out of a port: a full one, or a `short` one.

        `vlan`: the VLAN of its tag; 0: no tag.
        """

    def flooded_port(self, port: int) -> int:
        """Return the port of the port's link group to which frames are flooded; `port` if there is none."""

    async def flood_to(self, port: int) -> None:
        """Flood frames for the port's link group to this port, if they are flooded to one of the group."""

    async def install(self, job: Placement) -> None:
        """Write the job's entries for admission and delivery, its multicast group, and the route to the parent."""

    async def reset(self, job: Placement, timeout: float) -> None:
        """Make every half of the job's slots ready for its first round; return when all have acknowledged.

        timeout: seconds that it may take at least; a large pool gets more.
        """

    async def fence(self, job: Placement) -> None:
        """Remove the admission entries: from now on nothing reaches the job's slots."""

    async def abort(self, job: Placement, rank: int | None, reason: int) -> None:
        """Multicast an ABORT to the job's group. `rank`: the one that it names."""

    async def forget(self, job: Placement) -> None:
        """Remove the rest of what `install` wrote."""

    async def query(self, half: int) -> HalfState: ...

    async def set_loss(self, port: int, direction: Direction, rate: float) -> None: ...

    @property
    def loss_rates(self) -> Mapping[tuple[int, Direction], float]: ...

    async def outcomes(self) -> dict[str, int]:
        """Return the packets to the aggregator by outcome, and under `forged` frames to others in the switch's name."""

    async def job_traffic(self) -> dict[tuple[int, int], Counted]:
        """Return what each job's members have sent to the switch, by job number and generation.

        It is {} if the switch does not count that.
        """

    async def losses(self) -> dict[tuple[int, Direction], int]:
        """Return the number of packets that were dropped artificially."""
