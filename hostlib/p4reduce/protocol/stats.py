# SPDX-License-Identifier: Apache-2.0
"""The counters of a worker."""

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters of a worker since its start, in the order of `p4reduce_stats`. Bytes are those of UDP payloads."""

    operations: int = 0
    """Operations that ended without an error."""
    rounds: int = 0
    """Rounds whose RESULT was taken, announcements included."""
    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    blocks_sent: int = 0
    """Blocks whose values were sent, including blocks of zeros that an operation sends. Retransmissions count once."""
    blocks_filled: int = 0
    """Zero blocks that were sent only to give the switch room for its answer."""
    blocks_skipped: int = 0
    """Zero blocks that were not sent, of operations that ended without an error."""
    blocks_received: int = 0
    """Blocks whose sums were taken from a RESULT."""
    retransmissions: int = 0
    statuses: int = 0
    """STATUS answers: this worker was ahead of a straggler."""
    stale: int = 0
    """Packets of an earlier round or generation, which are ignored."""
    foreign: int = 0
    """Packets that are malformed or of another job, and ABORTs without the job's secret. They are ignored."""
    slowdowns: int = 0
    """Times that the congestion window was reduced, because a queue was long or seemed to have overflowed."""
    local_fallbacks: int = 0
    """Operations for which the kernel did not let ranks of the host read or map each other's tensors."""
    marks: int = 0
    """Answers of rounds of which a router has marked a packet, because of a long queue (ECN)."""
