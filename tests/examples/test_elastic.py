# SPDX-License-Identifier: Apache-2.0
"""Ranks under torchrun that are killed and started again come to the loss of those that are not, to the last digit."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.examples.runs import EXAMPLES, by_switch_alone, losses_of, rounds_of, run, torchrun
from tests.support.cluster.stack import Stack

STEPS = 20
DYING = str(Path(__file__).with_name("dying.py"))
ELASTIC = str(EXAMPLES / "train_elastic.py")

# A store of its own for each start, in which nobody finds what those before have left.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arguments", [[], ["backend"]])
def test_killed_ranks_come_back(stack: Stack, tmp_path: Path, arguments: list[str]) -> None:
    """P4REDUCE_KILLS of them, one after the other, at steps that follow from P4REDUCE_SEED."""
    kills, chosen = int(os.environ.get("P4REDUCE_KILLS", "1")), random.Random(os.environ.get("P4REDUCE_SEED", "0"))
    plan = [f"{step}:{chosen.randrange(2)}" for step in sorted(chosen.sample(range(STEPS - 3), kills))]
    comes_back(stack, tmp_path, arguments, plan)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_killed_when_it_has_saved_has_told_its_step(stack: Stack, tmp_path: Path) -> None:
    """No rank does that step again, so no rank could print it later."""
    comes_back(stack, tmp_path, [], ["5:1:saved"])


def comes_back(stack: Stack, tmp_path: Path, arguments: list[str], plan: list[str]) -> None:
    kills = len(plan)
    expected = losses_of(run(stack, torchrun(ELASTIC, str(tmp_path / "whole"), *arguments)))
    assert len(expected) == 2 * STEPS
    before = stack.status()["jobs_aborted"]
    restarts = ["--max-restarts", str(kills), "--monitor-interval", "0.1"]
    command = torchrun(*restarts, DYING, ",".join(plan), ELASTIC, str(tmp_path / "killed"), *arguments)
    with rounds_of(stack, STEPS):
        said = run(stack, command, more=OWN_STORE, limit=240 + 120 * kills)
    assert stack.status()["jobs_aborted"] == before + kills
    assert losses_of(said) == expected, plan
    assert by_switch_alone(said) == {0, 1}, said
