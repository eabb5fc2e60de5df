# SPDX-License-Identifier: Apache-2.0
"""FSDP, FSDP2 and HSDP on two ranks, or on four that are two hosts', beside a model that one process trains."""

from __future__ import annotations

import pytest

from tests.examples.runs import EXAMPLES, all_has_crossed, expected, losses_of, rounds, rounds_of, run, torchrun
from tests.support.cluster.stack import Stack

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("example", "ranks", "hosts"),
    [
        ("train_fsdp2.py", 2, None),
        ("train_fsdp2_hook.py 2", 4, 2),
        ("train_hsdp.py 2", 4, 2),
        ("train_fsdp.py", 2, None),
        ("train_fsdp.py hook", 2, None),
    ],
)
def test_losses_are_those_of_one_process(stack: Stack, example: str, ranks: int, hosts: int | None) -> None:
    program, *arguments = example.split()
    with rounds_of(stack, rounds(ranks)):
        said = run(stack, torchrun(str(EXAMPLES / program), *arguments, ranks=ranks))
    assert losses_of(said) == pytest.approx(expected(ranks), rel=1e-5)
    all_has_crossed(said, ranks, hosts)
