# SPDX-License-Identifier: Apache-2.0
"""Mapping of slots that are striped over several aggregators. Whole jobs are in test_begin_anew.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.aggregators import from_aggregator, slots_at_each, to_aggregator
from p4reduce.protocol.constants import MAX_AGGREGATORS

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

AGGREGATORS = st.integers(1, MAX_AGGREGATORS)
HALVES = st.integers(0, 0xFFFF)


@given(HALVES, AGGREGATORS)
def test_every_half_comes_back(half: int, aggregators: int) -> None:
    aggregator, there = to_aggregator(half, aggregators)
    assert from_aggregator(there, aggregator, aggregators) == half
    assert 0 <= aggregator < aggregators
    assert there <= half
    assert there & 1 == half & 1  # or a round would not be in the half of its seq
    assert to_aggregator(half, 1) == (0, half)


@given(st.integers(1, 600), AGGREGATORS)
def test_each_aggregator_holds_its_share_without_gaps(slots: int, aggregators: int) -> None:
    striped = [to_aggregator(half, aggregators) for half in range(2 * slots)]
    assert len(set(striped)) == 2 * slots
    each = slots_at_each(slots, aggregators)
    for aggregator in range(aggregators):
        there = sorted(half for owner, half in striped if owner == aggregator)
        assert there == list(range(len(there)))
        assert len(there) in (2 * each, 2 * (each - 1))
    assert to_aggregator(0, aggregators) == (0, 0)  # where ranks of different shapes meet
