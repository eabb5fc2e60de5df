# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, on the backend: those that pass with Gloo on CPUs, of `pytorch_tests.txt`.

Some ask for the backend's name, and not for what it can do: `test_accumulate_gradients_no_sync` and its kin have
no model for a name that they do not know, and `dist.monitored_barrier` serves none but Gloo. They run with the backend
taken for Gloo.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.torchrun import ROOT
from tests.support.cluster.stack import Stack

pytestmark = pytest.mark.slow

TESTS = Path(__file__).with_name("pytorch_tests.txt").read_text().split()
BY_NAME = [
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_subgroup",
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("taken_for", ["p4reduce", "gloo"])
def test_what_passes_on_gloo(taken_for: str, ranks: int, native_stack: Stack) -> None:
    of_groups = ranks == 4  # which can be halved
    names = [name for name in TESTS if (name in BY_NAME) == (taken_for == "gloo") and ("group" in name) == of_groups]
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.pytorch_suite", "p4reduce", taken_for, str(ranks), *names],
        cwd=ROOT,
        env={**os.environ, "P4REDUCE_CONTROLLER": native_stack.controller, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=850, check=True,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["test"] for event in events] == names
    assert [event for event in events if event["result"] != "passed"] == []
