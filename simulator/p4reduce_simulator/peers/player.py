# SPDX-License-Identifier: Apache-2.0
"""A schedule's messages on a network's links.

No packet is dropped or lost, and none is acknowledged: a transport with perfect flow control, such as RDMA tries to be.
So times are the least that the algorithm can take on these links. Between a source and a destination, all packets take
one of the shortest paths; pairs are spread over these paths.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from p4reduce.transport.frames import HEADERS, IPV4, UDP
from p4reduce_simulator import library as sim
from p4reduce_simulator.network import Link, Network, names_of
from p4reduce_simulator.peers.schedule import Schedule
from p4reduce_simulator.running import LinkUse
from p4reduce_simulator.simulation import PS, BareSimulation, host_settings, link_settings, switch_settings

MTU = 1500  # with IPv4 and UDP
_FRAME = 64  # bytes; messages have no contents


@dataclass(frozen=True)
class Played:
    """The result of a schedule. Times are in seconds of virtual time, except `wall`.

    time: until the last rank has received its last message.
    rank_times: the same of each rank.
    ended: when each message had been received.
    """

    time: float
    rank_times: tuple[float, ...]
    ended: npt.NDArray[np.float64]
    links: tuple[LinkUse, ...]
    events: int
    digest: str
    wall: float


def play(
    network: Network, schedule: Schedule, *, mtu: int = MTU, until: float = 3600.0, wall_limit: float = 86400.0
) -> Played:
    """Play a schedule. Raises TimeoutError if it has not ended at `until`, or after `wall_limit` seconds.

    Server s is at the switch of rank s mod the number of ranks, and has a link as ranks have.
    """
    began = time.monotonic()
    with _Messages(network, schedule, mtu) as messages:
        pending = messages.run(until, began + wall_limit)
        if pending:
            raise TimeoutError(f"{pending} of {len(schedule)} messages have not arrived at {messages.now:g} s")
        ended = messages.states["ended"] / PS
        rank_times = np.zeros(schedule.ranks + schedule.servers)
        np.maximum.at(rank_times, np.asarray(schedule.destinations), ended)
        times = tuple(rank_times[: schedule.ranks].tolist())
        wall = time.monotonic() - began
        return Played(max(times), times, ended, messages.uses(), messages.events, messages.digest, wall)


class _Messages(BareSimulation):
    """A network of hosts, and of switches that only forward, with the messages of a schedule."""

    def __init__(self, network: Network, schedule: Schedule, mtu: int) -> None:
        if not 64 <= mtu <= 65535:
            raise ValueError(f"mtu is {mtu}: accepted are 64 to 65535")
        if schedule.ranks != len(network.ranks):
            raise ValueError(f"a schedule for {schedule.ranks} ranks, a network with {len(network.ranks)}")
        super().__init__(0, _FRAME)
        self._network, self._schedule = network, schedule
        self._links: dict[tuple[str, str], tuple[int, int]] = {}  # number and rate
        try:
            self._nodes = {name: self._add_switch() for name in network.switches}
            hosts = schedule.ranks + schedule.servers
            self._hosts = [*names_of(network), *(f"server{server}" for server in range(schedule.servers))]
            self._switches = [network.ranks[host % schedule.ranks] for host in range(hosts)]
            self._nodes.update({name: self._add_host() for name in self._hosts})
            for cable in network.cables:
                self._connect(cable.a, cable.b, cable.link or network.core)
            for name, switch in zip(self._hosts, self._switches, strict=True):
                self._connect(name, switch, network.edge)
            self._start(mtu)
        except BaseException:
            self.close()
            raise

    def uses(self) -> tuple[LinkUse, ...]:
        """Return what each link carried."""
        found = []
        for (source, destination), (link, rate) in self._links.items():
            counts = self.link_counts(link)
            busy = 8 * counts["bytes"] / rate / self.now if rate and self.now else 0.0
            waited = counts["longest_wait"] / PS
            found.append(LinkUse(source, destination, counts["packets"], counts["bytes"], 0, 0, 0, waited, busy))
        return tuple(found)

    def _add_switch(self) -> int:
        return self._call("add_switch", None, None, ctypes.byref(switch_settings(self._network.switch)))

    def _add_host(self) -> int:
        return self._call("add_host", ctypes.byref(host_settings(self._network.host)))

    def _connect(self, a: str, b: str, link: Link) -> None:
        settings = link_settings(replace(link, queue=0, mark=0, loss=0.0))
        for one, other in ((a, b), (b, a)):
            made = self._call("add_link", self._nodes[one], 0, self._nodes[other], 0, ctypes.byref(settings))
            self._links[one, other] = made, link.rate

    def _start(self, mtu: int) -> None:
        schedule = self._schedule
        states = np.zeros(len(schedule), sim.MESSAGE)
        states["bytes"] = schedule.sizes
        states["source"] = np.array([self._nodes[name] for name in self._hosts])[np.asarray(schedule.sources)]
        waits, ends = map(np.asarray, schedule.all_waits())
        states["waits_for"] = np.diff(ends)
        states["after_count"] = np.bincount(waits, minlength=len(schedule))
        states["after"] = np.cumsum(states["after_count"]) - states["after_count"]
        waiting = np.repeat(np.arange(len(schedule), dtype=np.uint32), states["waits_for"])
        self._successors = waiting[np.argsort(waits, kind="stable")]
        paths = _Paths(self._network, self._hosts, self._switches, self._links)
        states["path"] = [paths.number(*pair) for pair in zip(schedule.sources, schedule.destinations, strict=True)]
        self._paths = np.array(paths.links, np.uint32)
        self.states = states
        pointers = (array.ctypes.data for array in (states, self._successors, self._paths))
        payload = mtu - IPV4.size - UDP.size
        given = sim.Messages(*pointers, len(schedule), HEADERS.size, payload, 0)
        self._call("start_messages", ctypes.byref(given))


class _Paths:
    """The paths between hosts, all in one list. Pairs of hosts are spread over equally long paths."""

    def __init__(
        self,
        network: Network,
        hosts: Sequence[str],
        switches: Sequence[str],
        links: dict[tuple[str, str], tuple[int, int]],
    ) -> None:
        self.links: list[int] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._hosts, self._switches, self._by_ends = hosts, switches, links
        self._adjacent: dict[str, list[str]] = {switch: [] for switch in network.switches}
        for cable in network.cables:
            self._adjacent[cable.a].append(cable.b)
            self._adjacent[cable.b].append(cable.a)
        self._distances = {switch: self._distances_to(switch) for switch in set(switches)}

    def number(self, source: int, destination: int) -> int:
        """Return the place of a path in `links`."""
        if (source, destination) not in self._numbers:
            self._numbers[source, destination] = len(self.links)
            self.links += self._find(source, destination)
            self.links.append(sim.PATH_END)
        return self._numbers[source, destination]

    def _find(self, source: int, destination: int) -> list[int]:
        at, end = self._switches[source], self._switches[destination]
        names = [self._hosts[source], at]
        left = self._distances[end]
        while at != end:
            nearer = [other for other in self._adjacent[at] if left.get(other, left[at]) < left[at]]
            at = nearer[(source + destination) % len(nearer)]
            names.append(at)
        names.append(self._hosts[destination])
        return [self._by_ends[ends][0] for ends in pairwise(names)]

    def _distances_to(self, switch: str) -> dict[str, int]:
        found = {switch: 0}
        waiting = [switch]
        for at in waiting:  # which grows
            new = [other for other in self._adjacent[at] if other not in found]
            found.update(dict.fromkeys(new, found[at] + 1))
            waiting += new
        return found
