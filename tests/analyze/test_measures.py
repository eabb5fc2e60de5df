# SPDX-License-Identifier: Apache-2.0
"""The measures, against examples counted by hand, and what holds for any tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.blocks import ZERO, Blocks
from p4reduce_bench.analyze.measures import Measures, block_mask, expected, measure
from p4reduce_bench.recordings import Mask, element_mask


def masks(*workers: str) -> Mask:
    """Return the mask of workers' units, from one string of 0 and 1 for each worker."""
    return np.array([[unit == "1" for unit in worker] for worker in workers], np.bool_).reshape(len(workers), -1)


def test_an_example_by_hand() -> None:
    # The workers have 1 of min(2, 3) in common. Worker 0's halves hold 2 and 0 of 4, worker 1's hold 1 and 2.
    found = measure(masks("11000000", "01001100"))
    assert found == Measures(
        workers=2, units=8, density=5 / 16, union=4 / 8, overlap=1 / 2, densification=(4 / 8) / (5 / 16),
        skew=pytest.approx(((2 / 4) / (2 / 8) + (2 / 4) / (3 / 8)) / 2),
    )  # fmt: skip


def test_the_same_everywhere_and_nothing_in_common() -> None:
    same = measure(masks("0110", "0110", "0110"))
    assert (same.overlap, same.densification) == (1, 1)
    disjoint = measure(masks("1000", "0100", "0010"))
    assert (disjoint.overlap, disjoint.densification) == (0, 3)


def test_overlap_is_of_the_sparser_worker() -> None:
    assert measure(masks("1111", "0001")).overlap == 1


def test_zeros_have_no_overlap_densification_or_skew() -> None:
    assert measure(masks("000", "000")) == Measures(2, 3, 0.0, 0.0, None, None, None)
    assert measure(masks("", "")) == Measures(2, 0, 0.0, 0.0, None, None, None)
    # A worker without any does not count where it would be divided by nothing.
    one_empty = measure(masks("0011", "0000", "0001"))
    assert one_empty.overlap == 1
    assert one_empty.densification == pytest.approx(2 / 4 / (3 / 12))


def test_one_worker() -> None:
    assert measure(masks("0101")) == Measures(1, 4, 0.5, 0.5, None, 1.0, 1.0)


@pytest.mark.parametrize("shape", [(4,), (0, 4), (1, 2, 3)])
def test_masks_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be \\(workers, units\\)"):
        measure(np.zeros(shape, np.bool_))


def test_a_block_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size=0"):
        block_mask(np.zeros(4, np.bool_), 0)


def test_minus_zero_is_zero_and_nan_is_not() -> None:
    values = np.array([[0.0, -0.0], [np.nan, 1e-45]], np.float32)
    assert element_mask(values).tolist() == [False, False, True, True]


@given(st.lists(st.booleans(), max_size=300), st.sampled_from([1, 32, 64, 128, 256]))
def test_blocks_are_those_that_the_protocol_sends(elements: list[bool], block_size: int) -> None:
    values = np.array(elements, np.float32)
    sent = Blocks(values, block_size).scan() != ZERO
    assert block_mask(element_mask(values), block_size).tolist() == sent.tolist()
    both = block_mask(np.stack([element_mask(values)] * 2), block_size)
    assert both.tolist() == [sent.tolist()] * 2


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)))
def test_bounds(columns: list[list[bool]]) -> None:
    drawn = np.array(columns, np.bool_).T
    found = measure(drawn)
    assert 0 <= found.density <= found.union <= 1
    assert found.overlap is None or 0 <= found.overlap <= 1
    if found.densification is not None and found.skew is not None:
        assert 1 <= found.densification <= found.workers
        assert found.skew >= 1 - 1e-12
        assert found.densification * found.density == pytest.approx(found.union)


def test_dense_tensors_gain_what_the_ring_sends_twice() -> None:
    dense = np.ones((8, 1 << 18), np.bool_)
    found = expected([dense], 64, 1e9)
    # Twice 7/8 of the tensor, in larger packets and with less around them.
    assert 1.4 < found.speed_up < 1.75
    twice = expected([dense, dense], 64, 1e9)
    assert (twice.ring_s, twice.switch_s) == (2 * found.ring_s, 2 * found.switch_s)
    assert expected([dense], 64, 1e8).ring_s == pytest.approx(10 * found.ring_s)


def test_sparse_tensors_gain_by_their_union() -> None:
    sparse = np.zeros((2, 1 << 20), np.bool_)
    sparse[:, ::6400] = True
    by_block = [expected([sparse], size, 1e9).speed_up for size in (32, 64, 128, 256)]
    assert by_block[1] > 20
    # One element of 6,400: the smaller the block, the fewer zeros travel with it.
    assert by_block == sorted(by_block, reverse=True)


def test_a_block_size_without_packets_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size=100: accepted are 32, 64, 128, 256"):
        expected([np.ones((2, 100), np.bool_)], 100, 1e9)
