# SPDX-License-Identifier: Apache-2.0
"""What process groups and their calls leave behind, with the garbage collector off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack

from .conftest import PROGRAMS, RANKS, free_port, torchrun


def test_calls_leave_nothing_to_the_collector(native_stack: Stack) -> None:
    events = torchrun("garbage.py", controller=native_stack.controller)
    passed = [[event["passed"] for event in events if event["rank"] == rank] for rank in range(RANKS)]
    assert passed[0] == passed[1]
    assert passed[0][-1] == "hierarchical_hook"


@pytest.mark.parametrize("groups", [12, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_groups_that_fail_are_made_again(native_stack: Stack, tmp_path: Path, groups: int) -> None:
    environment = {
        **os.environ, "P4REDUCE_CONTROLLER": native_stack.controller, "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS),
    }  # fmt: skip
    command = [sys.executable, str(PROGRAMS / "again.py"), str(groups)]
    errors = [tmp_path / f"errors-{rank}" for rank in range(RANKS)]  # PyTorch writes more than a pipe holds
    ranks = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=file.open("w"), text=True
        )
        for rank, file in enumerate(errors)
    ]
    try:
        for rank, file in zip(ranks, errors, strict=True):
            said, _ = rank.communicate(timeout=500)
            assert rank.returncode == 0, file.read_text()[-4000:]
            events = [json.loads(line) for line in said.splitlines()]
            assert len(events) == groups
            assert all(event["right"] for event in events)
            assert not any(event["left"] for event in events)
            early, late = events[3], events[-1]
            assert late["threads"] <= early["threads"] + 2
            assert late["descriptors"] <= early["descriptors"] + 2
            assert late["heap"] < early["heap"] + (1 << 20)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
