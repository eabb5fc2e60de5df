# SPDX-License-Identifier: Apache-2.0
"""A fake aggregator in memory that records calls, and fails those that a test selects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from p4reduce_controller.switches.aggregator import (
    ControlCounts,
    Counted,
    Direction,
    HalfState,
    Heard,
    Layout,
    Listener,
    Placement,
    SwitchUnavailable,
)
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import OUTCOMES, Endpoint


class FakeSwitch:
    """A fake of `aggregator.Aggregator`.

    log: the calls so far, in order.
    fail: exceptions to raise, by method.
    """

    def __init__(self, slots: int = 16, number: int = 0) -> None:
        self.layout = Layout(lanes=4, block_size=64, slots=slots)
        self.address = Endpoint("02:00:7f:00:00:01", "127.0.0.1", 31314 + number)
        self.target = f"fake {number}" if number else "fake"
        self.knows_vlans = self.knows_ipv6 = True
        self.problem = ""
        self.counts = ControlCounts()
        self.log: list[str] = []
        self.fail: dict[str, Exception] = {}
        self.resets: list[Placement] = []
        self.hold_resets = asyncio.Event()
        self.hold_resets.set()
        self.admitted: dict[int, Placement] = {}
        self.groups: dict[int, Placement] = {}
        self.aborts: list[tuple[int, int | None, int]] = []
        self.halves: dict[int, tuple[int, int]] = {}  # seq and bitmap
        self.loss_rates: Mapping[tuple[int, Direction], float] = {}
        self.listener: Listener | None = None
        self.cables: dict[int, list[tuple[FakeSwitch, int]]] = {}  # by port: the switches there, and their ports
        self.vlans: dict[int, int] = {}  # by port: the VLAN into which a switch on the way puts its frames
        self._connected = asyncio.Event()
        self.given_up = False
        self.ports: dict[int, str] = {}
        self.ports_unknown = "it has none"
        self._expected: dict[int, Placement] = {}

    def expect(self, job: Placement) -> None:
        self._expected[job.job] = job

    @property
    def unavailable(self) -> Unavailable | None:
        return Unavailable(self.problem, summary="unreachable for 7 s") if self.problem else None

    async def look(self, timeout: float) -> None:
        assert timeout > 0

    async def start(self, listener: Listener, timeout: float) -> None:
        assert timeout > 0
        self.listener = listener
        self._connected.set()
        there, expected = self.admitted, self._expected
        intact = {
            number for number in there if number in expected and _entries(expected[number]) == _entries(there[number])
        }
        self.admitted = {number: there[number] for number in intact}
        self.groups = dict(self.admitted)
        self._expected = {}
        listener.connected(frozenset(expected.keys() - intact), restarted=not there)

    def restart(self) -> None:
        """Forget all jobs, as a switch that restarts while no controller is connected."""
        self.admitted, self.groups = {}, {}

    async def close(self, *, keep: bool = False) -> None:
        self.log.append("keep" if keep else "close")

    async def wait_connected(self) -> None:
        while not (self._connected.is_set() or self.given_up):
            await asyncio.sleep(0.01)

    def give_up(self) -> None:
        self.given_up = True

    def hear(self, hello: Heard) -> None:
        self.listener.on_hello(hello)

    def set_ports(self, **states: str) -> None:
        """Set the states of ports, such as `p1="UP"`, and notify the listener."""
        self.ports = {int(name[1:]): state for name, state in states.items()}
        self.listener.ports_changed()

    def disconnect(self) -> None:
        self._connected.clear()
        self.problem = "pulled"

    def reconnect(self, lost: frozenset[int] = frozenset()) -> None:
        assert self.listener is not None
        self.problem = ""
        for number in lost:
            self.admitted.pop(number, None)
            self.groups.pop(number, None)
        self._connected.set()
        self.listener.connected(lost, restarted=True)

    def _do(self, what: str) -> None:
        if not self._connected.is_set():
            raise SwitchUnavailable("the fake switch is disconnected")
        if error := self.fail.get(what):
            raise error
        self.log.append(what)

    async def say_hello(
        self, port: int, to: Endpoint, worker: int, nonce: int, *, short: bool = False, vlan: int = 0
    ) -> None:
        self._do(f"say_hello{' short' * short}{f' in VLAN {vlan}' * bool(vlan)}")
        for other, there in self.cables.get(port, ()):
            if other.address == to:
                other.hear(Heard(there, self.address, 0, 0, worker, nonce, vlan=self.vlans.get(port, 0)))

    async def install(self, job: Placement) -> None:
        self._do("install")
        assert self.admitted.get(job.job) != job
        self.admitted[job.job] = self.groups[job.job] = job

    async def reset(self, job: Placement, timeout: float) -> None:  # noqa: ARG002
        self._do("reset")
        self.resets.append(job)
        await self.hold_resets.wait()

    async def fence(self, job: Placement) -> None:
        self._do("fence")
        self.admitted.pop(job.job, None)

    async def abort(self, job: Placement, rank: int | None, reason: int) -> None:
        self._do("abort")
        assert job.job not in self.admitted, "fenced first"
        self.aborts.append((job.job, rank, reason))

    async def forget(self, job: Placement) -> None:
        self._do("forget")
        self.groups.pop(job.job, None)

    async def query(self, half: int) -> HalfState:
        self._do(f"query {half}")
        seq, bitmap = self.halves[half]
        return HalfState(half, seq, bitmap, 0)

    def flooded_port(self, port: int) -> int:
        return port

    async def flood_to(self, port: int) -> None:
        pass

    async def set_loss(self, port: int, direction: Direction, rate: float) -> None:
        self._do("set_loss")
        self.loss_rates = {**self.loss_rates, (port, direction): rate}

    async def outcomes(self) -> dict[str, int]:
        self._do("outcomes")
        return dict.fromkeys(OUTCOMES, 0) | {"hello": 7}

    async def job_traffic(self) -> dict[tuple[int, int], Counted]:
        return {(job.job, job.generation): Counted(10 * job.job, 1000 * job.job) for job in self.admitted.values()}

    async def losses(self) -> dict[tuple[int, Direction], int]:
        return dict.fromkeys(self.loss_rates, 3)


def _entries(job: Placement) -> tuple[object, ...]:
    """Return the parts of a placement that a switch stores."""
    workers = [(worker.port, worker.sender) for worker in job.workers]
    return job.job, job.generation, job.slots, workers, job.children, job.parent
