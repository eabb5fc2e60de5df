# SPDX-License-Identifier: Apache-2.0
"""The aggregation header's fields, from which codec, traces, the scapy layer and the Wireshark dissector are made.

They are big-endian, without gaps, and one key of 32 bits for each lane follows. p4src/include/headers.p4 defines them,
and a test keeps this file equal to it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class Field(NamedTuple):
    """A field of the header. title: its name for people. text: its meaning."""

    name: str
    bits: int
    title: str
    text: str


FIELDS = (
    Field("version", 4, "Version", "of the protocol"),
    Field("op", 4, "Operation", "what kind of packet it is"),
    Field("active", 8, "Active lanes", "lanes that this round carries"),
    Field("present", 8, "Present lanes", "lanes whose values are in this packet"),
    Field("worker", 8, "Worker", "index among the workers of the switch; 255: none of them"),
    Field("job", 16, "Job", "number at the controller"),
    Field("generation", 16, "Generation", "of the job at the controller"),
    Field("slot", 16, "Slot and half", "twice the slot's index, plus the half"),
    Field("seq", 32, "Sequence number", "of the slot's round"),
    Field("fingerprint", 32, "Fingerprint", "of the round: the operation's, and the active lanes in the last byte"),
)
KEY = (Field("block", 24, "Block", "number of the next non-zero block within its stream"),
       Field("exponent", 8, "Exponent", "255 less the block's largest biased exponent"))  # fmt: skip
"""The parts of a key. In a key with all bits set, no block follows."""

_CODES = {8: "B", 16: "H", 32: "I"}


FIXED = struct.Struct("!B" + "".join(_CODES[field.bits] for field in FIELDS[2:]))
"""The header without its keys. The first byte has both version and op."""


def byte_range(name: str) -> slice:
    """Return the range of bytes that a field has in the header."""
    names = [field.name for field in FIELDS]
    begin = sum(field.bits for field in FIELDS[: names.index(name)])
    return slice(begin // 8, (begin + FIELDS[names.index(name)].bits) // 8)


SLOT = byte_range("slot")
NONCE = slice(byte_range("fingerprint").start, FIXED.size + 4)
"""The bytes of a HELLO's nonce: the fingerprint and the first key."""
JOB = slice(byte_range("job").start, byte_range("generation").stop)
"""The bytes of the job's number and generation."""
