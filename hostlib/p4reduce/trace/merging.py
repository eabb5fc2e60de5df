# SPDX-License-Identifier: Apache-2.0
"""One sequence of packets out of what was captured at several places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter

from p4reduce.errors import P4ReduceError
from p4reduce.trace.frames import Build, Datagram, Header, build_of, headers

LOOKED_AT = 1000  # datagrams by which the build is told


def merge(captures: Sequence[Sequence[Datagram]], build: Build | None = None) -> tuple[list[Header], Build]:
    """All packets, in order of time, each once though it was captured at several places.

    Of the packets between two addresses those of one place count: where most of them were captured, as that stands
    before the one that lost some. Raises P4ReduceError where there are none, or of no build that is known.
    """
    if not any(captures):
        raise P4ReduceError("no packet to or from UDP port 31314 was captured")
    build = build or build_of(islice(chain.from_iterable(captures), LOOKED_AT))
    if build is None:
        raise P4ReduceError(
            "the packets fit no number of lanes and block size that is accepted: capture whole ones (tcpdump -s 0), or "
            "name both, as --lanes 4 --block-size 64"
        )
    packets = [[head for one in capture for head in headers(one, build)] for capture in captures]
    counts = [Counter((head.source, head.destination) for head in capture) for capture in packets]
    best = {way: max(range(len(counts)), key=lambda at: counts[at][way]) for count in counts for way in count}
    chosen = [
        head for at, capture in enumerate(packets) for head in capture if best[head.source, head.destination] == at
    ]
    return sorted(chosen, key=attrgetter("time")), build
