# SPDX-License-Identifier: Apache-2.0
"""Sums stay exact when ranks have several threads, and an aggregator's slots of all threads go on at other switches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.protocol.moving import LOSSES, Loss, run_losses

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.mark.parametrize("examples", [40, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_sums_are_the_references_whenever_aggregators_are_lost(examples: int) -> None:
    @given(st.integers(0, 2**32), st.integers(1, 4), LOSSES, st.booleans(), st.integers(2, 4))
    @settings(max_examples=examples)
    def check(seed: int, aggregators: int, losses: list[Loss], tree: bool, threads: int) -> None:
        run_losses(seed, aggregators, losses, tree=tree, threads=threads)

    check()


def test_ranks_that_are_ahead_send_packets_of_the_round_before() -> None:
    """The schedules would prove little if no rank ever did."""
    repeated = sum(run_losses(seed, 1, [Loss(0, 30, spread=0.0005)], threads=2).repeated for seed in range(40))
    assert repeated > 0
