# SPDX-License-Identifier: Apache-2.0
from itertools import product

from p4reduce.protocol.fingerprint import fingerprint, of_round, same_operation


def test_differs_in_every_part() -> None:
    calls = list(product([0, 1, 2, 0xFFFFFFFF], ["float32", "bfloat16"], ["sum", "avg"], [0, 1, 999, 1000, 1 << 33]))
    assert len({fingerprint(*call) for call in calls}) == len(calls)


def test_calls_near_each_other_differ() -> None:
    """Names may have any length. Calls that 24 bits of a CRC-32 cannot tell apart are far from each other."""
    for length in (0, 11, 44, 60):
        name = "x" * length
        assert len({fingerprint(counter, name, "", 1000) for counter in range(25_000)}) == 25_000


def test_lanes_are_the_lowest_byte() -> None:
    operation = fingerprint(3, "float32", "sum", 9)
    assert operation & 0xFF == 0
    assert of_round(operation, 0b1010) == operation + 0b1010
    assert same_operation(of_round(operation, 1), of_round(operation, 2))
    assert not same_operation(of_round(operation, 1), of_round(operation ^ 0x100, 1))


def test_counter_wraps() -> None:
    assert fingerprint(2**32 + 3, "float32", "sum", 5) == fingerprint(3, "float32", "sum", 5)
    assert 0 <= fingerprint(2**32 - 1, "float32", "sum", 5) < 2**32
