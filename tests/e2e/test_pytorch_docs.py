# SPDX-License-Identifier: Apache-2.0
"""The tutorial in docs/pytorch.md, run as it stands there."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.stack import Stack

DOCS = Path(__file__).parents[2] / "docs" / "pytorch.md"


def scripts() -> list[str]:
    """Return those Python blocks of the document that are whole scripts."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if 'init_process_group("gloo")' in block]


def torchrun(script: str, folder: Path, controller: str) -> dict[tuple[int, int], float]:
    """Run a script on two ranks, and return the losses by rank and step."""
    path = folder / "train.py"
    path.write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    environment = {**os.environ, "P4REDUCE_CONTROLLER": controller, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"rank (\d+) step (\d+) loss ([\d.]+)", done.stdout)
    return {(int(rank), int(step)): float(loss) for rank, step, loss in lines}


@pytest.mark.slow
def test_the_tutorial_runs_and_five_lines_make_the_difference(native_udp_stack: Stack, tmp_path: Path) -> None:
    plain, ours = scripts()
    changes = [line for line in difflib.ndiff(plain.splitlines(), ours.splitlines()) if line[0] in "+-"]
    assert all(change.startswith("+ ") for change in changes), changes
    assert len([change for change in changes if change.strip("+ ")]) == 5
    expected = torchrun(plain, tmp_path, native_udp_stack.controller)
    found = torchrun(ours, tmp_path, native_udp_stack.controller)
    assert len(expected) == 20
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[0, 9] != found[0, 0]
