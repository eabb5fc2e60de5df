# SPDX-License-Identifier: Apache-2.0
"""A topology as data, and what follows from it: ports, addresses, forwarding, aggregation trees.

    Topology(
        name="two-racks",
        hosts=("h1", "h2", "h3", "h4"),
        switches=("leaf1", "leaf2", "spine1"),
        links=(Link("h1", "leaf1"), ..., Link("leaf1", "spine1", LinkProperties(rate=10**9)), ...),
        workers=("h1", "h2", "h3", "h4"),   # rank 0 is at h1
        roots=("spine1",),
    )

Ports of a node have numbers from 1, as ordered in `links`. The interface of a port is `NODE-ethPORT`.
Hosts have the addresses 10.0.0.1, 10.0.0.2 ..., switches 10.0.255.1, 10.0.255.2 ... All are in one bridged /16, so no
router is needed. A MAC address is 02:00 and the four bytes of the IP address.

`topology.forwarding(switch)` maps the MAC address of every other node to a port. Ports lead along shortest paths;
destinations are spread over paths of equal length (ECMP). `topology.flood_ports(switch)` are the ports on a spanning
tree, so that flooded frames do not loop. `topology.tree(root)` is the aggregation tree below a root: the parent of each
switch, and the switch of each worker. Several roots share a job's slots. Then either the roots alone aggregate, or,
if `hierarchical`, each has a tree below it, and most switches are in several trees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network

NETWORK = IPv4Network("10.0.0.0/16")
MOST_HOSTS, MOST_SWITCHES = 254, 254
LONGEST_INTERFACE = 15  # characters that Linux accepts
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED = (
    "ctl",
)  # a switch of this name would have an interface "ctl-ethN", as the control link of a host "ethN" has


@dataclass(frozen=True)
class LinkProperties:
    """The properties of a link, which hold in each direction.

    rate: bits a second; 0 sets no limit.
    queue: the size of the queue before the link, in bytes.
    delay: seconds.
    jitter: the longest additional delay, in seconds. It hits one packet in ten, which others overtake.
    loss, duplicate, corrupt: shares of the packets.
    """

    rate: int = 0
    delay: float = 0.0
    queue: int = 1_000_000
    jitter: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError if a value is not accepted."""
        if self.rate != 0 and not 8_000 <= self.rate <= 10**12:
            raise ValueError(f"rate={self.rate}: 0 or 8000 to 10^12 bits a second are accepted")
        for name in ("delay", "jitter"):
            if not 0 <= getattr(self, name) <= 10:
                raise ValueError(f"{name}={getattr(self, name)}: 0 to 10 seconds are accepted")
        if not 2000 <= self.queue <= 10**9:
            raise ValueError(f"queue={self.queue}: 2000 to 10^9 bytes are accepted")
        for name in ("loss", "duplicate", "corrupt"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: 0 to 1 is accepted")

    @property
    def impairments(self) -> dict[str, float]:
        """The properties other than the rate that are not zero, by name."""
        names = ("delay", "jitter", "loss", "duplicate", "corrupt")
        return {name: value for name in names if (value := getattr(self, name))}


PLAIN = LinkProperties()


@dataclass(frozen=True)
class Link:
    """A cable between two nodes."""

    a: str
    b: str
    properties: LinkProperties = PLAIN

    @property
    def ends(self) -> tuple[str, str]:
        return self.a, self.b

    def other(self, node: str) -> str:
        """Return the end that is not `node`."""
        return self.b if node == self.a else self.a


@dataclass(frozen=True)
class Tree:
    """An aggregation tree.

    root: the switch that computes the final sums.
    parents: the parent of each switch except the root.
    switch_of: the switch of each worker.
    """

    root: str
    parents: Mapping[str, str]
    switch_of: Mapping[str, str]

    @property
    def switches(self) -> tuple[str, ...]:
        """All switches of the tree, each before its parent: the root is last."""
        depth = {self.root: 0}
        for switch in self.parents:
            at, path = switch, []
            while at not in depth:
                path.append(at)
                at = self.parents[at]
            for steps, one in enumerate(reversed(path), start=depth[at] + 1):
                depth[one] = steps
        return tuple(sorted(depth, key=lambda switch: -depth[switch]))

    def children(self, switch: str) -> tuple[str, ...]:
        """Return the children whose packets a switch aggregates: its workers in rank order, then switches."""
        workers = tuple(worker for worker, its in self.switch_of.items() if its == switch)
        return workers + tuple(lower for lower, upper in self.parents.items() if upper == switch)


@dataclass(frozen=True)
class Topology:
    """A connected network.

    hosts: workers, and hosts for other traffic.
    workers: the hosts of the ranks, in rank order.
    roots: the switches that compute final sums.
    hierarchical: whether switches below several roots aggregate; they always do below a single one.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    workers: tuple[str, ...]
    roots: tuple[str, ...]
    hierarchical: bool = False
    _links_of: dict[str, list[Link]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError, which names the node or link that is not accepted."""
        nodes = [*self.hosts, *self.switches]
        if repeated := sorted({node for node in nodes if nodes.count(node) > 1}):
            raise ValueError(f"{self.name}: the name {repeated[0]} is there twice")
        for node in nodes:
            self._check_name(node)
        if len(self.hosts) > MOST_HOSTS or len(self.switches) > MOST_SWITCHES:
            raise ValueError(f"{self.name}: up to {MOST_HOSTS} hosts and {MOST_SWITCHES} switches are accepted")
        self._links_of.update({node: [] for node in nodes})
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            for end in link.ends:
                if end not in self._links_of:
                    raise ValueError(f"{self.name}: a link leads to {end!r}, which is not a node")
                self._links_of[end].append(link)
            if len(set(link.ends)) == 1 or frozenset(link.ends) in pairs:
                raise ValueError(f"{self.name}: one link between two nodes is accepted, not {link.a} to {link.b} again")
            pairs.add(frozenset(link.ends))
        for node in nodes:
            self._check_interfaces(node)
        for host in self.hosts:
            if len(self._links_of[host]) != 1 or self._links_of[host][0].other(host) not in self.switches:
                raise ValueError(f"{self.name}: host {host} must have one link, to a switch")
        for what, some, among in (("worker", self.workers, self.hosts), ("root", self.roots, self.switches)):
            if strange := sorted(set(some) - set(among)):
                raise ValueError(f"{self.name}: {what} {strange[0]} is not among {', '.join(among)}")
            if not some or len(set(some)) != len(some):
                raise ValueError(f"{self.name}: there must be a {what}, and none twice")
        if unreached := sorted(set(nodes) - set(self._distances(self.roots[0]))):
            raise ValueError(f"{self.name}: there is no path from {self.roots[0]} to {unreached[0]}")
        for root in self.roots if self.hierarchical else ():
            if others := sorted(set(self.tree(root).parents) & set(self.roots)):
                raise ValueError(f"{self.name}: the root {others[0]} is below {root}: accepted are roots side by side")

    def _check_name(self, node: object) -> None:
        """Raise ValueError for a name that could not be part of an interface's name or of a command."""
        if not isinstance(node, str) or not _NAME.fullmatch(node) or node in _RESERVED:
            raise ValueError(
                f"{self.name}: the name {node!r} is not accepted: a node's name has letters of ASCII, digits, '.', '_' "
                f"and '-', begins with a letter or a digit, and is not {', '.join(map(repr, _RESERVED))}"
            )

    def _check_interfaces(self, node: str) -> None:
        """Raise ValueError if the name of an interface would be longer than Linux accepts.

        The name contains the port, so a node with more links needs a shorter name.
        """
        names = [f"{node}-eth{len(self._links_of[node])}", *([f"ctl-{node}"] if node in self.hosts else [])]
        longest = max(names, key=len)
        if len(longest) > LONGEST_INTERFACE:
            most = LONGEST_INTERFACE - len(longest) + len(node)
            raise ValueError(
                f"{self.name}: the name {node!r} has {len(node)} characters: up to {most} are accepted for a node with "
                f"{len(self._links_of[node])} links, as its interface would be {longest}, and Linux accepts "
                f"{LONGEST_INTERFACE} characters"
            )

    # Ports and addresses.

    def ports(self, node: str) -> dict[int, str]:
        """Return the node at the other end of each port."""
        return {port: link.other(node) for port, link in enumerate(self._links_of[node], start=1)}

    def port(self, node: str, neighbour: str) -> int:
        """Return the port of `node` that leads to `neighbour`. Raises KeyError if they have no link."""
        for port, other in self.ports(node).items():
            if other == neighbour:
                return port
        raise KeyError(f"{node} has no link to {neighbour}")

    def interface(self, node: str, neighbour: str) -> str:
        return f"{node}-eth{self.port(node, neighbour)}"

    def link(self, a: str, b: str) -> Link:
        """Return the link between two nodes. Raises KeyError if there is none."""
        return self._links_of[a][self.port(a, b) - 1]

    def ip(self, node: str) -> str:
        base = NETWORK.network_address
        if node in self.hosts:
            return str(base + 1 + self.hosts.index(node))
        return str(base + 255 * 256 + 1 + self.switches.index(node))

    def mac(self, node: str) -> str:
        return (b"\x02\x00" + IPv4Address(self.ip(node)).packed).hex(":")

    # Paths.

    def forwarding(self, switch: str) -> dict[str, int]:
        """Return the port of a switch for the MAC address of every other node."""
        nodes = enumerate([*self.hosts, *self.switches])
        ways = ((index, node, self._next_hops(switch, node)) for index, node in nodes if node != switch)
        return {self.mac(node): self.port(switch, hops[index % len(hops)]) for index, node, hops in ways}

    def flood_ports(self, switch: str) -> tuple[int, ...]:
        """Return the ports of a switch on the spanning tree of all nodes."""
        spanned = self._spanning_tree
        return tuple(port for port, other in self.ports(switch).items() if frozenset((switch, other)) in spanned)

    def tree(self, root: str) -> Tree:
        """Return the aggregation tree: the shortest path of every worker to the root."""
        switch_of = {worker: self._links_of[worker][0].other(worker) for worker in self.workers}
        parents: dict[str, str] = {}
        for at in switch_of.values():
            while at != root and at not in parents:
                parents[at] = self._next_hops(at, root)[0]
                at = parents[at]
        return Tree(root, parents, switch_of)

    @cached_property
    def aggregating(self) -> tuple[str, ...]:
        """The switches that aggregate: those of all trees, or only the roots if these have no trees."""
        if not self.has_trees:
            return self.roots
        return tuple(dict.fromkeys(switch for root in self.roots for switch in self.tree(root).switches))

    @property
    def has_trees(self) -> bool:
        """Whether the switches below the roots aggregate, so that a worker's own switch adds its packets."""
        return self.hierarchical or len(self.roots) == 1

    @cached_property
    def _distances_to(self) -> dict[str, dict[str, int]]:
        """The distances of all nodes to each node."""
        return {node: self._distances(node) for node in self._links_of}

    def _next_hops(self, start: str, end: str) -> list[str]:
        """Return the neighbours of `start` that are on a shortest path to `end`."""
        distances = self._distances_to[end]
        return [other for other in self.ports(start).values() if distances[other] < distances[start]]

    def _distances(self, start: str) -> dict[str, int]:
        """Return the distances of all nodes from `start`, by breadth-first search. No path leads through a host."""
        distances = {start: 0}
        waiting = [start]
        for node in waiting:
            if node == start or node in self.switches:
                for link in self._links_of[node]:
                    other = link.other(node)
                    if other not in distances:
                        distances[other] = distances[node] + 1
                        waiting.append(other)
        return distances

    @cached_property
    def _spanning_tree(self) -> frozenset[frozenset[str]]:
        root = self.roots[0]
        return frozenset(frozenset((node, self._next_hops(node, root)[0])) for node in self._links_of if node != root)


__all__ = ["NETWORK", "PLAIN", "Link", "Topology", "Tree", "LinkProperties"]
