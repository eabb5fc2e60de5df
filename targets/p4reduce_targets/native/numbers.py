# SPDX-License-Identifier: Apache-2.0
"""Limits of the native switch. They equal those in native.h, meter.h, tables.h and plane.h in targets/csrc."""

from __future__ import annotations

from p4reduce.transport.addresses import number_in_128_bits

KEY_WORDS = 4
"""The words of a key."""
MAX_ARGUMENTS = 6
"""The most words of an action's arguments."""
METER_LIMIT = (1 << 32) - 1
"""The largest rate and burst of a meter."""
MAX_THREADS = 64
MAX_FRAME = 80 << 10
"""The size of the buffer for a packet-in, in bytes."""
WORD_BITS = 64


def two_words(number: int) -> tuple[int, int]:
    """Return a number of 128 bits as the C code has it: its upper word, then its lower one."""
    return number >> WORD_BITS, number & (1 << WORD_BITS) - 1


def address_words(ip: str) -> tuple[int, int]:
    """Return an IP address as the C code has it: an IPv4 one in its IPv4-mapped form (targets/csrc/ip.h)."""
    return two_words(number_in_128_bits(ip))
