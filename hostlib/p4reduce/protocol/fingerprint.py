# SPDX-License-Identifier: Apache-2.0
"""What a rank is at, in 32 bits, so that the switch notices ranks that are at different things.

The upper 24 bits say which operation it is, the lower 8 which lanes the round carries.
"""

from __future__ import annotations

import struct
from zlib import crc32


def fingerprint(counter: int, dtype: str, reduce_op: str, numel: int) -> int:
    """Return the upper 24 bits, the lower being 0, that identify an operation: the job's `counter`-th, counting from 0.

    They are those of the CRC-32 of the counter (32 bits, big-endian), the number of elements (64 bits, big-endian) and
    "dtype/reduce op" in ASCII. So they surely differ where only the counter does, by less than 25,000.
    """
    return crc32(struct.pack("!IQ", counter & 0xFFFFFFFF, numel) + f"{dtype}/{reduce_op}".encode("ascii")) & ~0xFF


def of_round(operation: int, active: int) -> int:
    """Return the fingerprint of a round: that of its operation, and its lanes."""
    return operation | active


def same_operation(one: int, other: int) -> bool:
    """Whether two rounds' fingerprints differ at most in their lanes."""
    return one >> 8 == other >> 8
