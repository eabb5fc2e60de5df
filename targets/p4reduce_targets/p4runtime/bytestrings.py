# SPDX-License-Identifier: Apache-2.0
"""P4Runtime's byte strings: big-endian numbers. The server accepts any length and sends the shortest."""

from __future__ import annotations

from p4reduce_targets.p4runtime.errors import invalid

LONGEST_SHOWN = 128  # bits of a number that an error contains in full


def decode(value: bytes, bits: int, what: str) -> int:
    """Return the number; raise Refused (INVALID_ARGUMENT) if it is wider than `bits`. Leading zeros are accepted."""
    number = int.from_bytes(value, "big")
    if number >> bits:
        shown = f"{number:#x}" if number.bit_length() <= LONGEST_SHOWN else f"a number of {number.bit_length()} bits"
        raise invalid(f"{what}: {shown} does not fit within {bits} bits")
    return number


def encode(number: int) -> bytes:
    """Return the canonical form: at least one byte, and no leading zero byte otherwise."""
    return number.to_bytes((number.bit_length() + 7) // 8 or 1, "big")
