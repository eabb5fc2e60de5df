# SPDX-License-Identifier: Apache-2.0
"""Published allreduces as schedules of messages.

In the formulas, P is the number of ranks, E that of elements, k that of a rank's non-zero elements, and u that of the
whole sum. An element takes 4 bytes, and an index 4. Sums have all their non-zero elements, as those of
`p4reduce_bench.peers` have, except with `oktopk-k` and `gtopk`, which keep k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from p4reduce_simulator.peers.schedule import Schedule
from p4reduce_simulator.peers.support import Support

VALUE = 4
PAIR = 8  # an index and a value
OMNIREDUCE_BLOCK = 256
_OMNIREDUCE_SLOTS = 256  # of all aggregators, as max_num_pending_messages of its published configuration
_OMNIREDUCE_NEXT = 4  # bytes: the number of the next block


def ring(support: Support) -> Schedule:
    """Ring (Patarasuk and Yuan, 2009): P chunks go around twice. A rank sends 4E * 2(P - 1)/P bytes."""
    ranks = support.ranks
    schedule = Schedule(ranks, parts=ranks)
    before: list[list[int]] = [[] for _ in range(ranks)]
    for step in range(2 * (ranks - 1)):
        after = before
        before = [[] for _ in range(ranks)]
        for rank in range(ranks):
            to, chunk = (rank + 1) % ranks, (rank - step) % ranks
            size = VALUE * _share(support.numel, ranks, chunk)
            before[to] = [schedule.send(rank, to, size, after[rank], chunk)]
    return schedule


def halving_doubling(support: Support) -> Schedule:
    """Recursive halving and doubling (Thakur, Rabenseifner and Gropp, 2005). A rank sends 4E * 2(P - 1)/P bytes."""
    ranks, steps = support.ranks, _power_of_two(support.ranks)
    schedule = Schedule(ranks, parts=ranks)
    received: list[list[int]] = [[] for _ in range(ranks)]
    distances = [ranks >> step for step in range(1, steps + 1)]
    for distance in [*distances, *distances[::-1]]:
        halving = len(schedule) < ranks * steps
        sent = []
        for rank in range(ranks):
            part = (rank ^ distance if halving else rank) & ~(distance - 1)
            size = VALUE * sum(_share(support.numel, ranks, at) for at in range(part, part + distance))
            sent.append(schedule.send(rank, rank ^ distance, size, received[rank], part, distance))
        received = [[*received[rank], sent[rank ^ distance]] for rank in range(ranks)]
    return schedule


def parameter_server(support: Support) -> Schedule:
    """Parameter servers (Li et al., OSDI 2014), as many as ranks. A rank sends 4E bytes, and so does a server."""
    ranks = support.ranks
    schedule = Schedule(ranks, ranks, parts=ranks)
    pushed: list[list[int]] = [[] for _ in range(ranks)]
    for step in range(ranks):
        for rank in range(ranks):
            part = (rank + step) % ranks
            size = VALUE * _share(support.numel, ranks, part)
            pushed[part].append(schedule.send(rank, ranks + part, size, (), part))
    for part in range(ranks):
        for rank in range(ranks):
            size = VALUE * _share(support.numel, ranks, part)
            schedule.send(ranks + part, (part + rank) % ranks, size, pushed[part], part)
    return schedule


def agsparse(support: Support) -> Schedule:
    """AGsparse: all gather all ranks' indices and values. A rank receives 8k(P - 1) bytes."""
    schedule = Schedule(support.ranks)
    _all_gather(schedule, PAIR * support.nonzero, [[] for _ in range(support.ranks)], parts=False)
    return schedule


def sparcml(support: Support) -> Schedule:
    """SparCML's SSAR_Recursive_double (Renggli et al., SC 2019): in step t, ranks at distance 2^t exchange sums.

    A rank sends 8k log2 P to 8k(P - 1) bytes. Sums become dense where that takes less.
    """
    ranks = support.ranks
    schedule = Schedule(ranks)
    received: list[list[int]] = [[] for _ in range(ranks)]
    for step in range(_power_of_two(ranks)):
        size = min(PAIR * support.union(1 << step), VALUE * support.numel)
        partners = [rank ^ 1 << step for rank in range(ranks)]
        sent = [schedule.send(rank, partner, size, received[rank]) for rank, partner in enumerate(partners)]
        received = [[*received[rank], sent[partner]] for rank, partner in enumerate(partners)]
    return schedule


def sparcml_split(support: Support) -> Schedule:
    """SparCML's SSAR_Split_allgather: each rank adds up one part of the indices, and all gather the sums.

    A rank sends 8k(P - 1)/P bytes in the first phase. In the second it sends and receives 8u(P - 1)/P.
    """
    return _split_and_gather(support, PAIR * support.union(support.ranks) / support.ranks)


def sparcml_dense(support: Support) -> Schedule:
    """SparCML's DSAR_Split_allgather: sums are gathered dense, 4E(P - 1)/P bytes."""
    return _split_and_gather(support, VALUE * support.numel / support.ranks)


def oktopk(support: Support) -> Schedule:
    """Ok-Topk (Li and Hoefler, PPoPP 2022), which gathers the whole sum.

    A rank sends 8k(P - 1)/P bytes to split, and 8u(P - 1)/P to gather. Non-zeros are spread evenly here, so nothing is
    balanced in between. The boundaries of the parts are reused, as published, and cost nothing.
    """
    return sparcml_split(support)


def oktopk_k(support: Support) -> Schedule:
    """Ok-Topk as published, which gathers the k largest elements of the sum: 16k(P - 1)/P bytes in all.

    Its upper bound of 24k(P - 1)/P has 8k(P - 1)/P to balance elements, which is not needed if they are spread evenly.
    """
    return _split_and_gather(support, PAIR * support.nonzero / support.ranks)


def gtopk(support: Support) -> Schedule:
    """gTop-k (Shi et al., ICDCS 2019): the k largest go up a binary tree, and down again: 8k bytes a step."""
    ranks, steps = support.ranks, _power_of_two(support.ranks)
    schedule = Schedule(ranks)
    received: list[list[int]] = [[] for _ in range(ranks)]
    size = PAIR * support.nonzero
    for step in range(steps):
        distance = 1 << step
        for rank in range(distance, ranks, 2 * distance):
            received[rank - distance].append(schedule.send(rank, rank - distance, size, received[rank]))
    for step in reversed(range(steps)):
        distance = 1 << step
        for rank in range(0, ranks, 2 * distance):
            received[rank + distance] = [schedule.send(rank, rank + distance, size, received[rank])]
    return schedule


def zen(support: Support) -> Schedule:
    """Zen (Wang et al., OSDI 2025): a hash spreads indices evenly, and sums come back as bitmaps and values.

    A rank sends 8k(P - 1)/P bytes to push, and (E/8 + 4u)(P - 1)/P to be pulled.
    """
    ranks = support.ranks
    size = (support.numel / 8 + VALUE * support.union(ranks)) / ranks
    return _split_and_gather(support, size, direct=True)


def omnireduce(support: Support, servers: int | None = None) -> Schedule:
    """OmniReduce (Fei et al., SIGCOMM 2021) with aggregators on servers, as many as ranks.

    Blocks of 256 elements are striped over the aggregators' slots. In each round of a slot, workers that have the block
    send it, with the number of their next one. The aggregator sends the sum to all, with the least of these numbers.
    All workers send the first block of each slot. A rank sends its own non-zero blocks and receives those of the sum.
    """
    ranks = support.ranks
    servers = ranks if servers is None else servers
    masks = np.array(support.blocks(OMNIREDUCE_BLOCK))
    blocks = masks.shape[1]
    slots = min(max(_OMNIREDUCE_SLOTS, servers), blocks)
    masks[:, :slots] = True
    of_sum = np.flatnonzero(masks.any(0))
    schedule = Schedule(ranks, servers, parts=blocks)
    results: list[list[int]] = [[] for _ in range(slots)]
    for block in of_sum.tolist():
        slot = block % slots
        server = ranks + slot % servers
        size = VALUE * min(OMNIREDUCE_BLOCK, support.numel - block * OMNIREDUCE_BLOCK) + _OMNIREDUCE_NEXT
        before = results[slot]
        come = [
            schedule.send(rank, server, size, before[rank : rank + 1], block)
            for rank in np.flatnonzero(masks[:, block]).tolist()
        ]
        results[slot] = [schedule.send(server, rank, size, come, block) for rank in range(ranks)]
    return schedule


SYSTEMS: Mapping[str, Callable[[Support], Schedule]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "parameter-server": parameter_server,
    "agsparse": agsparse,
    "sparcml": sparcml,
    "sparcml-split": sparcml_split,
    "sparcml-dense": sparcml_dense,
    "oktopk": oktopk,
    "oktopk-k": oktopk_k,
    "gtopk": gtopk,
    "zen": zen,
    "omnireduce": omnireduce,
}


def _split_and_gather(support: Support, gathered: float, *, direct: bool = False) -> Schedule:
    """Return a schedule in which each rank adds up a part of the elements, and all gather `gathered` bytes of each.

    Destinations rotate, so that no rank receives from two others at a time.
    """
    ranks = support.ranks
    schedule = Schedule(ranks, parts=ranks)
    received: list[list[int]] = [[] for _ in range(ranks)]
    for step in range(1, ranks):
        for rank in range(ranks):
            to = (rank + step) % ranks
            received[to].append(schedule.send(rank, to, PAIR * support.nonzero / ranks, (), to))
    _all_gather(schedule, gathered, received, direct=direct)
    return schedule


def _all_gather(
    schedule: Schedule, size: float, received: list[list[int]], *, direct: bool = False, parts: bool = True
) -> None:
    """Add an all-gather of `size` bytes of each rank: by recursive doubling for powers of two, unless it is direct.

    received: for each rank, the messages that it must have. parts: ranks have a part each; otherwise all have all.
    """
    ranks = schedule.ranks
    if direct or ranks & (ranks - 1):
        for step in range(1, ranks):
            for rank in range(ranks):
                schedule.send(rank, (rank + step) % ranks, size, received[rank], rank if parts else None)
        return
    for step in range(_power_of_two(ranks)):
        distance = 1 << step
        sent = []
        for rank in range(ranks):
            part = rank & ~(distance - 1) if parts else None
            sent.append(schedule.send(rank, rank ^ distance, distance * size, received[rank], part, distance))
        received = [[*received[rank], sent[rank ^ distance]] for rank in range(ranks)]


def _share(numel: int, ranks: int, part: int) -> int:
    """Return the elements of one of as many parts as ranks."""
    return numel * (part + 1) // ranks - numel * part // ranks


def _power_of_two(ranks: int) -> int:
    """Return log2 of the number of ranks. Raises ValueError."""
    if ranks & (ranks - 1):
        raise ValueError(f"{ranks} ranks: accepted are powers of two for sparcml, halving-doubling and gtopk")
    return ranks.bit_length() - 1
