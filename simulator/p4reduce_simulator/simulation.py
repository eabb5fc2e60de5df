# SPDX-License-Identifier: Apache-2.0
"""A network in the C library: its nodes, and the entries of switches, as a controller writes them."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from p4reduce.fastpath import library as host_library
from p4reduce.fastpath import structures as c
from p4reduce.protocol import Membership, Operation, Stats
from p4reduce.protocol.constants import (
    AGGREGATION_PORT,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_LANES,
    MAX_GROWTH,
    PARENT,
    Outcome,
)
from p4reduce.protocol.header import FIXED
from p4reduce.protocol.operation import Zeros
from p4reduce.transport.frames import HEADERS
from p4reduce_simulator import library as sim
from p4reduce_simulator.network import ETHERNET_OVERHEAD, Host, Link, Network, Switch, Tree
from p4reduce_targets.dataplane import Call, Exact, Replica
from p4reduce_targets.native.dataplane import NativeDataPlane
from p4reduce_targets.native.handle import Handle
from p4reduce_targets.native.program import Layout

PS = 10**12
CPU_PORT = 510
_EVENTS = 1 << 18  # between two looks at the wall clock, and at Ctrl-C
_FIRST_SEQ = 2  # registers begin at 0, so that no slot needs a RESET
_GENERATION = 1
_FIRST_UDP_PORT = 40000

_OWN = "SwitchIngress.own_address.own_addresses", "SwitchIngress.own_address.own"
_JOBS = "SwitchIngress.aggregation.admission.jobs", "SwitchIngress.aggregation.admission.admit"
_WORKERS = "SwitchEgress.delivery.workers", "SwitchEgress.delivery.address"
_UPLINKS = "SwitchIngress.aggregation.uplink.uplinks", "SwitchIngress.aggregation.uplink.uplink"
_OUTCOMES = "SwitchIngress.aggregation.outcomes"

S = TypeVar("S", bound="BareSimulation")


def ps(seconds: float) -> int:
    return round(seconds * PS)


@dataclass(frozen=True)
class _Port:
    """A switch's port, and the address of the node behind it."""

    number: int
    ip: int


def _mac(ip: int) -> int:
    return 0x0200 << 32 | ip


def _in_table(ip: int) -> int:
    """Return an IPv4 address as the switch's tables have it: ::ffff:a.b.c.d."""
    return 0xFFFF << 32 | ip


class BareSimulation:
    """A simulation of the C library, without nodes. Close it, or use it as a context manager.

    `longest`: bytes of the longest frame.
    """

    def __init__(self, seed: int, longest: int) -> None:
        self._library = sim.library()
        self._simulation = self._library.simulator_new(seed, longest)
        if not self._simulation:
            raise MemoryError("no memory for a simulation")

    def close(self) -> None:
        """Free the simulation."""
        if self._simulation:
            self._library.simulator_free(self._simulation)
            self._simulation = None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, until: float = 3600.0, deadline: float = math.inf) -> int:
        """Run until all operations or messages have ended, or to a virtual time, or to a time of time.monotonic.

        Return how many have not ended.
        """
        pending, happened = 1, -1
        while pending and self.events > happened and time.monotonic() < deadline:
            happened = self.events
            pending = self._call("run", ps(until), _EVENTS)
        return pending

    @property
    def now(self) -> float:
        return float(self._library.simulator_now(self._simulation) / PS)

    @property
    def events(self) -> int:
        return int(self._library.simulator_events(self._simulation))

    @property
    def digest(self) -> str:
        """A hash of all events: of their times, links and packets."""
        return f"{self._library.simulator_digest(self._simulation):016x}"

    def link_counts(self, link: int) -> dict[str, int]:
        counts = sim.LinkCounts()
        self._library.simulator_link_counts(self._simulation, link, ctypes.byref(counts))
        return {name: getattr(counts, name) for name in sim.LINK_COUNTS}

    def _call(self, function: str, *arguments: Any) -> int:
        result = int(getattr(self._library, f"simulator_{function}")(self._simulation, *arguments))
        if result == -errno.ENOMEM:
            raise MemoryError("no memory for the simulation")
        if result < 0:
            raise ValueError(f"the simulator refuses {function}{arguments}: errno {-result}")
        return result


class Simulation(BareSimulation):
    """A network with a rank at each host, all in one job.

    `clocks`: for each rank, the seconds that its clock is ahead, and that it gains in a second.
    """

    def __init__(
        self,
        network: Network,
        seed: int = 0,
        *,
        slots: int = 64,
        lanes: int = DEFAULT_LANES,
        block_size: int = DEFAULT_BLOCK_SIZE,
        clocks: list[tuple[float, float]] | None = None,
    ) -> None:
        self.network, self.slots, self.lanes, self.block_size = network, slots, lanes, block_size
        self.links: list[tuple[str, str]] = []  # from, to
        self.rates: list[int] = []  # of these
        self._arrays: list[Any] = []  # which requests refer to
        self._trees = network.trees
        self._values = 4 * lanes * block_size
        self._longest = HEADERS.size + FIXED.size + 4 * lanes + self._values
        super().__init__(seed, self._longest)
        self._handle = Handle(0)
        self._planes: dict[str, NativeDataPlane] = {}
        self._nodes: dict[str, int] = {}
        self._ports: dict[tuple[str, str], _Port] = {}  # by switch and the node behind it
        self._next_port: dict[str, int] = {}
        self._ip: dict[str, int] = {}
        try:
            self._add_switches()
            self._add_hosts(clocks or [(0.0, 0.0)] * len(network.ranks))
            for number, tree in enumerate(self._trees):
                self._install(number, tree)
            self._add_ranks()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the simulation and its switches."""
        super().close()
        self._planes.clear()
        self._handle.close()

    # --- running ------------------------------------------------------------------------------------------------------

    def submit(self, rank: int, data: npt.NDArray[Any], at: float = 0.0, zeros: Zeros = "skipped") -> int:
        """Submit an allreduce of `data`, in place, at a time to come. Return its number."""
        request = host_library.request_of(Operation(data, zeros=zeros))
        self._arrays.append((data, request))
        return self._call("submit", rank, ctypes.byref(request), ps(at))

    def forget_arrays(self) -> None:
        """Drop the arrays of operations, all of which have ended."""
        self._arrays.clear()

    def record(self, interval: float, start: float = 0.0) -> None:
        """Record the bytes on each link in each interval. The first one begins at `start`."""
        self._library.simulator_record(self._simulation, ps(interval), ps(start))

    def capture(self, path: Path) -> None:
        """Write each packet that arrives to a pcap file from now on, its headers and keys. Raises OSError."""
        result = self._library.simulator_capture(self._simulation, os.fsencode(path), self._longest - self._values)
        if result < 0:
            raise OSError(-result, os.strerror(-result), str(path))

    def end_capture(self) -> None:
        """Close the pcap file. Raises OSError if it is not complete."""
        result = self._library.simulator_end_capture(self._simulation)
        if result < 0:
            raise OSError(-result, "the capture is not complete")

    @property
    def strays(self) -> int:
        """Packets that no rank or link took."""
        return int(self._library.simulator_strays(self._simulation))

    def operation(self, number: int) -> tuple[float, float]:
        """Return when an operation began and ended. Raises its error, or TimeoutError if it has not ended."""
        state, error = sim.Operation(), c.Error.make()
        self._library.simulator_operation(self._simulation, number, ctypes.byref(state), ctypes.byref(error))
        if state.status < 0:
            raise TimeoutError(f"rank {state.rank}: the operation has not ended at {self.now:g} s")
        host_library.check(state.status, error)
        return state.started / PS, state.ended / PS

    def recorded(self, link: int) -> list[int]:
        """Return the bytes of each interval on a link."""
        count = ctypes.c_size_t()
        found = self._library.simulator_recorded(self._simulation, link, ctypes.byref(count))
        return found[: count.value] if count.value else []

    def stats(self, rank: int) -> Stats:
        stats = c.Stats.make()
        self._library.simulator_rank_stats(self._simulation, rank, ctypes.byref(stats))
        return host_library.to_stats(stats)

    def outcomes(self, switch: str) -> dict[str, int]:
        """Return how many packets had each outcome at a switch."""
        cells = self._planes[switch].read_counters([(_OUTCOMES, outcome) for outcome in Outcome])
        return {outcome.name: cell.packets for outcome, cell in zip(Outcome, cells, strict=True) if cell.packets}

    # --- building -----------------------------------------------------------------------------------------------------

    def _add_switches(self) -> None:
        pools = [self._pool(number) for number in range(len(self._trees))]
        layout = Layout(self.lanes, self.block_size, 2 * sum(pools), CPU_PORT, MAX_GROWTH)
        settings = switch_settings(self.network.switch)
        for index, name in enumerate(self.network.switches):
            self._ip[name] = 0x0AFF0001 + index  # 10.255.0.1
            plane = NativeDataPlane(self._handle, layout)
            self._planes[name] = plane
            self._nodes[name] = self._call("add_switch", self._handle.pointer, plane.handle, ctypes.byref(settings))
            self._insert(name, _OWN, (_in_table(self._ip[name]),), (_mac(self._ip[name]),))
        for cable in self.network.cables:
            self._connect(cable.a, cable.b, cable.link or self.network.core)

    def _add_hosts(self, clocks: list[tuple[float, float]]) -> None:
        for rank, switch in enumerate(self.network.ranks):
            name = f"rank{rank}"
            self._ip[name] = 0x0A000001 + rank  # 10.0.0.1
            settings = host_settings(self.network.host, self._ip[name], 4 * self.block_size, *clocks[rank])
            self._nodes[name] = self._call("add_host", ctypes.byref(settings))
            self._connect(name, switch, self.network.edge)

    def _connect(self, a: str, b: str, link: Link) -> None:
        ends = [(end, self._take_port(end)) for end in (a, b)]
        settings = link_settings(link)
        for (one, port), (other, other_port) in (ends, ends[::-1]):
            self._ports[one, other] = _Port(port, self._ip[other])
            self._call("add_link", self._nodes[one], port, self._nodes[other], other_port, ctypes.byref(settings))
            self.links.append((one, other))
            self.rates.append(link.rate)

    def _take_port(self, node: str) -> int:
        if node not in self._planes:
            return 0
        port = self._next_port[node] = self._next_port.get(node, 0) + 1
        if port >= CPU_PORT:
            raise ValueError(f"network {self.network.name}: {node} has more than {CPU_PORT - 1} cables")
        return port

    def _pool(self, tree: int) -> int:
        """Return how many slots a tree has: slot s is in tree s mod the number of trees."""
        return len(range(tree, self.slots, len(self._trees)))

    def _insert(self, switch: str, table: tuple[str, str], key: tuple[int, ...], arguments: tuple[int, ...]) -> None:
        name, action = table
        self._planes[switch].insert(name, tuple(map(Exact, key)), 0, Call(action, arguments))

    def _install(self, number: int, tree: Tree) -> None:
        """Write a tree's entries. To each of its switches, the tree is a job of its own."""
        job, base = number + 1, 2 * sum(self._pool(other) for other in range(number))
        for switch, parent in tree.parents.items():
            workers = [*(f"rank{rank}" for rank in self._ranks_at(switch)), *tree.children(switch)]
            full = (1 << len(workers)) - 1 | (1 << PARENT if parent else 0)
            replicas = []
            for index, worker in enumerate(workers):
                port = self._ports[switch, worker]
                udp = AGGREGATION_PORT if worker in self._planes else _FIRST_UDP_PORT + number
                self._admit(switch, port, udp, job, index, full, base, self._pool(number))
                self._insert(switch, _WORKERS, (job, index + 1), (_mac(port.ip), _in_table(port.ip), udp))
                replicas.append(Replica(port.number, index + 1))
            self._planes[switch].set_group(job, replicas)
            if parent:
                port = self._ports[switch, parent]
                index = len(self._ranks_at(parent)) + tree.children(parent).index(switch)
                self._admit(switch, port, AGGREGATION_PORT, job, PARENT, full, base, self._pool(number))
                self._insert(
                    switch, _UPLINKS, (job,), (port.number, _mac(port.ip), _in_table(port.ip), AGGREGATION_PORT, index)
                )

    def _admit(
        self, switch: str, port: _Port, udp: int, job: int, worker: int, full: int, base: int, slots: int
    ) -> None:
        key = (port.number, _in_table(port.ip), udp, job, _GENERATION, worker, 0)  # in no VLAN
        self._insert(switch, _JOBS, key, (1 << worker, full, base, 2 * slots, job))

    def _ranks_at(self, switch: str) -> list[int]:
        return [rank for rank, at in enumerate(self.network.ranks) if at == switch]

    def _add_ranks(self) -> None:
        world = len(self.network.ranks)
        for rank, switch in enumerate(self.network.ranks):
            peers = self._ranks_at(switch)
            membership = Membership(
                1, _GENERATION, rank, world, self.slots, self.lanes, self.block_size, _FIRST_SEQ,
                peers=() if len(peers) == world else tuple(peers),
            )  # fmt: skip
            aggregators = [
                sim.Aggregator(self._ip[switch], _FIRST_UDP_PORT + tree, tree + 1, _GENERATION)
                for tree in range(len(self._trees))
            ]
            array = (sim.Aggregator * len(aggregators))(*aggregators)
            error = c.Error.make()
            made = self._library.simulator_add_rank(
                self._simulation, self._nodes[f"rank{rank}"], ctypes.byref(host_library.to_c(membership)), None, array,
                len(array), ctypes.byref(error),
            )  # fmt: skip
            if made < 0:
                raise host_library.to_exception(error)


def link_settings(link: Link) -> sim.Link:
    return sim.Link(link.rate, ps(link.delay), link.queue, link.mark, link.burst, ETHERNET_OVERHEAD, 0, link.loss)


def host_settings(host: Host, ip: int = 0, block: int = 0, offset: float = 0.0, drift: float = 0.0) -> sim.Host:
    costs = (host.receive, host.receive_byte, host.send, host.send_byte, host.scan_byte * block)
    return sim.Host(ip, 0, *map(ps, costs), offset, drift)


def switch_settings(switch: Switch) -> sim.Switch:
    return sim.Switch(ps(switch.delay), ps(switch.receive), ps(switch.send))
