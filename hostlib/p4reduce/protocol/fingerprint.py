# SPDX-License-Identifier: Apache-2.0
"""A hash of what a rank calls, so that the switch notices ranks that call different things."""

from __future__ import annotations

import struct
from zlib import crc32


def fingerprint(counter: int, dtype: str, reduce_op: str, numel: int) -> int:
    """32 bits that identify an operation: the job's `counter`-th, counting from 0.

    CRC-32 of the counter (32 bits, big-endian), the number of elements (64 bits, big-endian) and "dtype/reduce op"
    in ASCII. Being a CRC, it surely differs where only the counter does, or only the low 32 bits of the number.
    """
    return crc32(struct.pack("!IQ", counter & 0xFFFFFFFF, numel) + f"{dtype}/{reduce_op}".encode("ascii"))
