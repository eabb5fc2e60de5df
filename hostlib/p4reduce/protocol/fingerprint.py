# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: 32 bits that identify a rank's operation and round, so that the switch notices if ranks differ.

The upper 24 bits identify the operation, the lower 8 are the lanes that the round carries.
"""

from __future__ import annotations

import struct
from zlib import crc32


def fingerprint(counter: int, dtype: str, reduce_op: str, numel: int) -> int:
    """Return the fingerprint of the job's operation number `counter`, counted from 0. Its lower 8 bits are 0.

    The upper 24 bits are those of the CRC-32 of the counter (32 bits, big-endian), the number of elements (64 bits,
    big-endian) and "dtype/reduce op" in ASCII. If two operations differ only in the counter, and by less than 25,000,
    their fingerprints are certain to differ.
    """
    return crc32(struct.pack("!IQ", counter & 0xFFFFFFFF, numel) + f"{dtype}/{reduce_op}".encode("ascii")) & ~0xFF


def of_round(operation: int, active: int) -> int:
    """Return the fingerprint of a round, from that of its operation and the active lanes."""
    return operation | active


def same_operation(one: int, other: int) -> bool:
    """Return whether two rounds' fingerprints differ at most in their lanes."""
    return one >> 8 == other >> 8
