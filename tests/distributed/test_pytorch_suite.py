# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, on the backend: those of `pytorch_tests.txt`.

Left out are tests that PyTorch skips or fails with Gloo on a CPU, too. Of those that it passes:
`test_monitored_barrier_gloo` and its kin, which insist on the backend's name; `test_accumulate_gradients_no_sync` and
its, which end with `ddp_model` unbound on a backend that they do not know; and `test_static_graph_api_cpu`, which takes
minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

from .conftest import PROGRAMS

pytestmark = pytest.mark.slow

TESTS = Path(__file__).with_name("pytorch_tests.txt").read_text().split()


@pytest.mark.timeout(900)
def test_what_passes_on_gloo(native_stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "pytorch_suite.py"), "p4reduce", "4", *TESTS],
        env={**os.environ, "P4REDUCE_CONTROLLER": native_stack.controller, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=850, check=True,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["test"] for event in events] == TESTS
    assert [event for event in events if event["result"] != "passed"] == []
