# SPDX-License-Identifier: Apache-2.0
"""Statistics of a communicator."""

from __future__ import annotations

from dataclasses import dataclass, fields

from p4reduce.collectives.sites import CallSite
from p4reduce.engine.engine import Engine


@dataclass(frozen=True)
class Stats:
    """Statistics of a communicator since it was made. Bytes are those of UDP payloads."""

    seconds: float
    """Time with at least one operation in flight."""
    operations: int
    """Collectives that ended well."""
    rounds: int
    retransmissions: int
    slowdowns: int
    """Times that the rank began to send more slowly: a queue in the network was long, or seemed to have overflowed."""
    marks: int
    """Answers of rounds of which a router has marked a packet, because of a long queue (ECN)."""
    packets_sent: int
    packets_received: int
    bytes_sent: int
    bytes_received: int
    blocks_sent: int
    blocks_skipped: int
    """Blocks of this rank that held only zeros, and so were not sent."""
    blocks_received: int
    foreign: int
    """Packets that were ignored: malformed ones, those of other jobs, and ABORTs without this job's secret."""
    local_fallbacks: int
    """Operations in which the kernel did not let a rank read or map another's tensor on the same host. Values were
    copied, or added by other ranks: slower, with the same results."""
    local: bool
    """Whether all ranks are on one host and reduce in its memory: then they send no packets."""
    threads: int
    """Threads of this rank's engine."""
    sites: tuple[CallSite, ...]
    """How sums of dense tensors were sent and why, for the 64 latest sizes, dtypes and operations; newest last."""

    @classmethod
    def of(cls, engine: Engine, sites: tuple[CallSite, ...], *, local: bool, threads: int) -> Stats:
        """Return the statistics of this engine and its worker, with these call sites."""
        counts = {name: getattr(engine.stats, name) for name in _OF_WORKER}
        return cls(seconds=engine.seconds, local=local, threads=threads, sites=sites, **counts)


# Computed once: dataclasses.fields() leaks 100 bytes a call on CPython 3.11.7.
_OF_CALLERS = ("seconds", "local", "threads", "sites")
_OF_WORKER = tuple(field.name for field in fields(Stats) if field.name not in _OF_CALLERS)
