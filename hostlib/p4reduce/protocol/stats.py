# SPDX-License-Identifier: Apache-2.0
"""What a worker counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """What a worker has done so far, in the order of `p4reduce_stats`. Bytes are those of UDP payloads."""

    operations: int = 0
    """Operations that ended well."""
    rounds: int = 0
    """Rounds whose RESULT was taken, announcements included."""
    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    blocks_sent: int = 0
    """Non-zero blocks whose values were sent, and those of zeros that an operation sends: each counted once, however
    often it was sent again."""
    blocks_filled: int = 0
    """Zero blocks that were sent all the same, to give the switch room for its answer."""
    blocks_skipped: int = 0
    """Zero blocks, not to be sent, of operations that ended well."""
    blocks_received: int = 0
    """Blocks whose sums were taken from a RESULT."""
    retransmissions: int = 0
    statuses: int = 0
    """STATUS answers: this worker was ahead of a straggler."""
    stale: int = 0
    """Packets of an earlier round or generation, ignored."""
    foreign: int = 0
    """Malformed packets, or not of this job, and ABORTs without its secret, ignored."""
    slowdowns: int = 0
    """Times that a queue seemed to have overflowed, and packets were spread out more."""
    local_fallbacks: int = 0
    """Operations for which the kernel did not let ranks of the host read, or map, each other's tensors."""
