# SPDX-License-Identifier: Apache-2.0
"""The losses of switches at random moments, for a while."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--spare", "--aggregators", "2"]])
def test_switches_are_lost_and_every_sum_is_right(options: list[str]) -> None:
    command = [sys.executable, "-m", "tests.chaos.failover", "--losses", "4", "--seed", "5", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert len(losses) >= 4
    assert {one["what"] for one in losses} <= {"switch", "spine", "uplink"}
