# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from test_vectors import VECTORS

from p4reduce.fastpath import numbers
from p4reduce.protocol.fingerprint import fingerprint


@given(st.integers(0, 2**40), st.sampled_from(["sum", "average"]), st.integers(0, 2**64 - 1))
def test_fingerprint(counter: int, op: str, numel: int) -> None:
    assert numbers.fingerprint(counter, "bfloat16", op, numel) == fingerprint(counter, "bfloat16", op, numel)


def test_vectors() -> None:
    for one in VECTORS["fingerprints"]:
        found = numbers.fingerprint(one["counter"], one["dtype"], one["reduce_op"], one["elements"])
        assert f"{found:08x}" == one["operation"]
