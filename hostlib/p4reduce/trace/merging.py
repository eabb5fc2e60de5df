# SPDX-License-Identifier: Apache-2.0
"""One sequence of packets out of what was captured at several places."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter

from p4reduce.errors import P4ReduceError
from p4reduce.trace.frames import Address, Build, Datagram, Header, build_of, count_cut, headers, job_of

_Way = tuple[Address, Address]

LOOKED_AT = 1000  # datagrams by which the build is told


Cut = Counter[tuple[int, int] | None]
"""Packets without a whole header, by number and generation of their job; None: cut before them."""


def merge(captures: Sequence[Sequence[Datagram]], build: Build | None = None) -> tuple[list[Header], Build, Cut]:
    """All packets, in order of time, each once though it was captured at several places.

    Of the packets between two addresses those of one place count: where most of them were captured, as that stands
    before the one that lost some. Packets that were cut before the end of their header are counted. Raises
    P4ReduceError where there are none, or of no build that is known.
    """
    if not any(captures):
        raise P4ReduceError("no packet to or from UDP port 31314 was captured")
    build = build or build_of(islice(chain.from_iterable(captures), LOOKED_AT))
    if build is None:
        raise P4ReduceError(
            "the packets' lengths match no accepted number of lanes and block size: capture whole packets (tcpdump -s "
            "0), or give both, as --lanes 4 --block-size 64"
        )
    packets = [[head for one in capture for head in headers(one, build)] for capture in captures]
    counts = [Counter((head.source, head.destination) for head in capture) for capture in packets]
    cuts: list[defaultdict[_Way, Cut]] = [_cut(capture, build) for capture in captures]

    def seen(at: int, way: _Way) -> tuple[int, int]:
        return counts[at][way], cuts[at][way].total() if way in cuts[at] else 0

    ways = {*chain.from_iterable(counts), *chain.from_iterable(cuts)}
    best = {way: max(range(len(counts)), key=lambda at: seen(at, way)) for way in ways}
    chosen = [
        head for at, capture in enumerate(packets) for head in capture if best[head.source, head.destination] == at
    ]
    cut = sum((cuts[at][way] for way, at in best.items() if way in cuts[at]), Cut())
    return sorted(chosen, key=attrgetter("time")), build, cut


def _cut(capture: Sequence[Datagram], build: Build) -> defaultdict[_Way, Cut]:
    """The packets without a whole header, by where they come from and go to."""
    found: defaultdict[_Way, Cut] = defaultdict(Counter)
    for one in capture:
        if count := count_cut(one, build):
            found[one.source, one.destination][job_of(one)] += count
    return found
