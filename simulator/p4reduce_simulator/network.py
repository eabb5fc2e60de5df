# SPDX-License-Identifier: Apache-2.0
"""A network as data: switches, ranks at them, cables, and the aggregation trees that follow from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from p4reduce.protocol.constants import MAX_AGGREGATORS, MAX_WORKERS, PARENT

ETHERNET_OVERHEAD = 24
"""Bytes on the wire in addition to a frame: preamble 8, check sequence 4, gap 12."""


@dataclass(frozen=True)
class Link:
    """The properties of a cable, which hold in each direction.

    rate: bits a second; 0 sets no limit.
    delay: propagation, in seconds.
    queue: bytes that may wait before the link. Packets beyond this are dropped. 0 sets no limit.
    mark: bytes that wait, from which on packets are marked (ECN); 0 marks none.
    loss: the share of packets that are lost at random.
    burst: bytes that may leave at once after a pause, as from a token bucket that limits the rate; 0 for a cable.
    """

    rate: int = 100_000_000_000
    delay: float = 1e-6
    queue: int = 1_000_000
    mark: int = 0
    loss: float = 0.0
    burst: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rate", 0, 10**15),
            ("delay", 0, 10),
            ("queue", 0, 10**9),
            ("mark", 0, 10**9),
            ("loss", 0, 1),
            ("burst", 0, 10**9),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} of a link is {getattr(self, name)}: accepted are {least} to {most:g}")


@dataclass(frozen=True)
class Host:
    """The processor of each rank's host: seconds that it needs for a packet, and for each byte of its payload.

    scan_byte: seconds for each byte of a tensor that is scanned for non-zeros.
    element, index: in the layout by elements, seconds for each element of a tensor, which is scanned and written, and
        for each index that any rank sends: to code, merge and look it up.
    """

    receive: float = 0.0
    receive_byte: float = 0.0
    send: float = 0.0
    send_byte: float = 0.0
    scan_byte: float = 0.0
    element: float = 0.0
    index: float = 0.0

    def with_threads(self, threads: int) -> Host:
        """Return a host with so many times as many engine threads. Elements and indices are not for these."""
        shared = {name: value / threads for name, value in asdict(self).items() if name not in ("element", "index")}
        return replace(self, **shared)


@dataclass(frozen=True)
class Switch:
    """A switch's forwarding delay in seconds; software also needs processor time for each packet in and out."""

    delay: float = 0.5e-6
    receive: float = 0.0
    send: float = 0.0


@dataclass(frozen=True)
class Cable:
    """A cable between two switches; `link` is None where it has the network's properties."""

    a: str
    b: str
    link: Link | None = None


@dataclass(frozen=True)
class Tree:
    """An aggregation tree: the parent of each switch that takes part in it, except the root, which is first."""

    root: str
    parents: Mapping[str, str | None]

    def children(self, switch: str) -> list[str]:
        return [child for child, parent in self.parents.items() if parent == switch]


@dataclass(frozen=True)
class Network:
    """A network of switches, and the switch of each rank.

    ranks: the name of the switch at which each rank's host is.
    edge, core: the links of hosts, and those between switches.
    roots: the switches that compute the final sums. Each is the root of a tree, and slots are striped over the trees.
    """

    name: str
    switches: tuple[str, ...]
    ranks: tuple[str, ...]
    cables: tuple[Cable, ...] = ()
    roots: tuple[str, ...] = ()
    edge: Link = field(default_factory=Link)
    core: Link = field(default_factory=Link)
    host: Host = field(default_factory=Host)
    switch: Switch = field(default_factory=Switch)

    def __post_init__(self) -> None:
        """Raise ValueError if the parts do not fit together."""
        named = set(self.switches)
        if not self.ranks or not self.switches or len(named) < len(self.switches):
            raise ValueError(f"network {self.name}: it needs ranks, and switches with different names")
        hosts = [switch for switch in self.switches if switch.startswith(("rank", "server"))]
        if hosts:
            raise ValueError(
                f"network {self.name}: the switch {hosts[0]}: accepted are names that do not begin with rank or "
                "server, as those of hosts do"
            )
        mentioned = {*self.ranks, *self.roots, *(end for cable in self.cables for end in (cable.a, cable.b))}
        if mentioned - named:
            raise ValueError(f"network {self.name}: there is no switch {min(mentioned - named)}")
        if not self.roots:
            object.__setattr__(self, "roots", (self.switches[0],))
        if len(self.roots) > MAX_AGGREGATORS:
            raise ValueError(f"network {self.name}: {len(self.roots)} roots: accepted are up to {MAX_AGGREGATORS}")

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The tree of each root, by shortest paths. Raises ValueError if a switch would have too many workers."""
        return tuple(self._tree(root) for root in self.roots)

    def _tree(self, root: str) -> Tree:
        adjacent: dict[str, list[str]] = {switch: [] for switch in self.switches}
        for cable in self.cables:
            adjacent[cable.a].append(cable.b)
            adjacent[cable.b].append(cable.a)
        parents: dict[str, str | None] = {root: None}
        waiting = [root]
        for switch in waiting:  # which grows
            found = [other for other in adjacent[switch] if other not in parents]
            parents.update(dict.fromkeys(found, switch))
            waiting += found
        missing = set(self.ranks) - set(parents)
        if missing:
            raise ValueError(f"network {self.name}: no cables lead from {min(missing)} to {root}")
        used: set[str | None] = set()
        for switch in set(self.ranks):
            at: str | None = switch
            while at is not None and at not in used:
                used.add(at)
                at = parents[at]
        used.add(root)
        tree = Tree(root, {switch: parent for switch, parent in parents.items() if switch in used})
        for switch, parent in tree.parents.items():
            workers = self.ranks.count(switch) + len(tree.children(switch))
            most = MAX_WORKERS if parent is None else PARENT
            if workers > most:
                raise ValueError(
                    f"network {self.name}: {workers} ranks and switches are below {switch}: a switch adds up at most "
                    f"{most}"
                )
        return tree

    def with_loss(self, loss: float) -> Network:
        """Return the network with this share of packets lost on each link."""
        return replace(self, edge=replace(self.edge, loss=loss), core=replace(self.core, loss=loss))


def star(ranks: int, link: Link | None = None, **others: object) -> Network:
    """Return a network of one switch."""
    return Network("star", ("switch",), ("switch",) * ranks, edge=link or Link(), **others)  # type: ignore[arg-type]


def clos(
    ranks: int,
    leaves: int,
    spines: int = 1,
    pods: int = 0,
    edge: Link | None = None,
    core: Link | None = None,
    **others: object,
) -> Network:
    """Return a tree (one spine) or a Clos network, with the ranks spread evenly over the leaves, in order.

    Each spine is the root of a tree, and each leaf has a cable to each spine. With `pods`, the leaves of a pod share
    `spines` switches in the middle, and the middle switches of the same number in all pods are below one root.
    """
    if leaves < 1 or spines < 1 or pods < 0 or not leaves <= ranks or (pods and leaves % pods):
        raise ValueError(
            f"ranks={ranks}, leaves={leaves}, spines={spines}, pods={pods}: accepted are at least as many ranks as "
            "leaves, and a multiple of `pods` as leaves"
        )
    roots = tuple(f"spine{spine}" for spine in range(spines))
    named = tuple(f"leaf{leaf}" for leaf in range(leaves))
    middle = tuple(f"pod{pod}-{spine}" for pod in range(pods) for spine in range(spines))
    if pods:
        cables = [Cable(f"pod{pod}-{spine}", roots[spine]) for pod in range(pods) for spine in range(spines)]
        cables += [
            Cable(name, f"pod{leaf * pods // leaves}-{spine}")
            for leaf, name in enumerate(named)
            for spine in range(spines)
        ]
    else:
        cables = [Cable(name, root) for name in named for root in roots]
    return Network(
        "clos" if spines > 1 or pods else "tree",
        (*roots, *middle, *named),
        tuple(named[rank * leaves // ranks] for rank in range(ranks)),
        tuple(cables),
        roots,
        edge or Link(),
        core or edge or Link(),
        **others,  # type: ignore[arg-type]
    )


def names_of(network: Network) -> Sequence[str]:
    """Return the names of the ranks' hosts, in order."""
    return [f"rank{rank}" for rank in range(len(network.ranks))]
