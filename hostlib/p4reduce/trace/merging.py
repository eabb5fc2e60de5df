# SPDX-License-Identifier: Apache-2.0
"""The merge of captures at several points of the network into one sequence of packets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.packet import Codec
from p4reduce.trace.frames import Address, Datagram, Header, codec_of, count_cut, headers, job_of

_Way = tuple[Address, Address]

CODEC_SAMPLE = 1000  # datagrams from which the codec is determined


Cut = Counter[tuple[int, int] | None]
"""Numbers of packets without a whole header, by number and generation of their job. None: cut before these."""


def merge(captures: Sequence[Sequence[Datagram]], codec: Codec | None = None) -> tuple[list[Header], Codec, Cut]:
    """Return all packets in order of time, each only once, even if several captures have it. Count those that were cut.

    If captures overlap in time, they saw the same packets between two addresses, at different points. The one with the
    most of them is used: it was captured before packets were lost. If captures follow each other, like the files of
    `tcpdump -C`, all are used. Packets that were cut before the end of their header are only counted. Raises
    P4ReduceError if there are no packets, or if their lengths match no known codec.
    """
    if not any(captures):
        raise P4ReduceError("no packet to or from UDP port 31314 was captured")
    codec = codec or codec_of(islice(chain.from_iterable(captures), CODEC_SAMPLE))
    if codec is None:
        raise P4ReduceError(
            "the packets' lengths match no accepted number of lanes and block size: capture whole packets (tcpdump -s "
            "0), or give both, as --lanes 4 --block-size 64"
        )
    packets = [[head for one in capture for head in headers(one, codec)] for capture in captures]
    counts = [Counter((head.source, head.destination) for head in capture) for capture in packets]
    cuts: list[defaultdict[_Way, Cut]] = [_cut(capture, codec) for capture in captures]

    def seen(at: int, way: _Way) -> tuple[int, int]:
        return counts[at][way], cuts[at][way].total() if way in cuts[at] else 0

    times = _times(captures)
    best = {
        (at, way)
        for way, spans in times.items()
        for overlapping in _overlaps(spans)
        for at in [max(overlapping, key=lambda at: seen(at, way))]
    }
    chosen = [
        head for at, capture in enumerate(packets) for head in capture if (at, (head.source, head.destination)) in best
    ]
    cut = sum((cuts[at][way] for at, way in best if way in cuts[at]), Cut())
    return sorted(chosen, key=attrgetter("time")), codec, cut


def _times(captures: Sequence[Sequence[Datagram]]) -> defaultdict[_Way, list[tuple[int, int, int]]]:
    """Return the first and last time of each capture's datagrams between two addresses, and the capture's number."""
    found: defaultdict[_Way, list[tuple[int, int, int]]] = defaultdict(list)
    for at, capture in enumerate(captures):
        times: defaultdict[_Way, list[int]] = defaultdict(list)
        for one in capture:
            times[one.source, one.destination].append(one.time)
        for way, all_times in times.items():
            found[way].append((min(all_times), max(all_times), at))
    return found


def _overlaps(spans: list[tuple[int, int, int]]) -> list[list[int]]:
    """Return groups of captures whose times overlap. spans: first time, last time and number of each capture."""
    groups: list[list[int]] = []
    end = -1
    for first, last, at in sorted(spans):
        if first > end:
            groups.append([])
        groups[-1].append(at)
        end = max(end, last)
    return groups


def _cut(capture: Sequence[Datagram], codec: Codec) -> defaultdict[_Way, Cut]:
    """Return the numbers of packets without a whole header, by source and destination."""
    found: defaultdict[_Way, Cut] = defaultdict(Counter)
    for one in capture:
        if count := count_cut(one, codec):
            found[one.source, one.destination][job_of(one)] += count
    return found
