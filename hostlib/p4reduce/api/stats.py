# SPDX-License-Identifier: Apache-2.0
"""What a communicator has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from p4reduce.collectives.sites import CallSite
from p4reduce.engine.engine import Engine


@dataclass(frozen=True)
class Stats:
    """What a communicator has done so far. Bytes are those of UDP payloads."""

    seconds: float
    """Time with at least one operation under way."""
    operations: int
    """Collectives that ended well."""
    rounds: int
    retransmissions: int
    slowdowns: int
    """Times that a queue in the network seemed to have overflowed, and packets were spread out more."""
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
    """Operations of ranks of one host for which the kernel did not let one read another's tensor, or map it, and values
    were copied, or added up by others: slower, with the same results."""
    local: bool
    """Whether the ranks are all on one host and reduce in its memory: then they send no packets."""
    threads: int
    """Of this rank's engine."""
    sites: tuple[CallSite, ...]
    """How sums of dense tensors went and why, of the 64 latest sizes, dtypes and operations; the last call's last."""

    @classmethod
    def of(cls, engine: Engine, sites: tuple[CallSite, ...], *, local: bool, threads: int) -> Stats:
        """What this engine and its worker have done, for calls at these sites."""
        counts = {name: getattr(engine.stats, name) for name in _OF_WORKER}
        return cls(seconds=engine.seconds, local=local, threads=threads, sites=sites, **counts)


# Once: dataclasses.fields() leaks 100 bytes a call on CPython 3.11.7.
_OF_CALLERS = ("seconds", "local", "threads", "sites")
_OF_WORKER = tuple(field.name for field in fields(Stats) if field.name not in _OF_CALLERS)
