# SPDX-License-Identifier: Apache-2.0
from itertools import product

from p4reduce.protocol.fingerprint import fingerprint


def test_differs_in_every_part() -> None:
    calls = list(product([0, 1, 2, 0xFFFFFFFF], ["float32", "bfloat16"], ["sum", "avg"], [0, 1, 999, 1000, 1 << 33]))
    assert len({fingerprint(*call) for call in calls}) == len(calls)


def test_fixed_values() -> None:
    """For whoever writes another implementation."""
    assert fingerprint(0, "float32", "sum", 0) == 0x1004E17B
    assert fingerprint(7, "int32", "sum", 1000) == 0xA6D9F2F7


def test_counter_wraps() -> None:
    assert fingerprint(2**32 + 3, "float32", "sum", 5) == fingerprint(3, "float32", "sum", 5)
    assert 0 <= fingerprint(2**32 - 1, "float32", "sum", 5) < 2**32
