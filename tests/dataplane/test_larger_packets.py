# SPDX-License-Identifier: Apache-2.0
"""This suite on the build for links of MTU 9,000: what it holds of rounds, lanes and slots."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dataplane.switch import COMPILED, SHIPPED

HERE = Path(__file__).parent
PARTS = ["test_rounds.py", "test_lanes.py", "test_slots.py", "test_admission.py"]


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("target", ["sim", "native", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])])
def test_larger_packets(target: str) -> None:
    if COMPILED != SHIPPED:
        pytest.skip("another build than the shipped one is under test")
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-k", f"[{target}", *(str(HERE / part) for part in PARTS)]
    environment = {**os.environ, "P4REDUCE_COMPILED": str(SHIPPED / "jumbo")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
