# SPDX-License-Identifier: Apache-2.0
"""SPIN goes through every state of the slot's model. With any one protection taken out, it finds what goes wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("slot.pml")
TIMEOUT_S = 120

# Each protection is there for safety, so that nothing wrong is added or sent, or for liveness, so that every
# operation ends.
SAFETY = [
    "WITHOUT_BITMAP",
    "WITHOUT_ROUND_NUMBERS",
    "WITHOUT_THE_THIRD_WORKER",
    "WITHOUT_SEQ_AT_THE_WORKER",
]
LIVENESS = ["WITHOUT_AGE", "WITHOUT_REPLAY", "WITHOUT_RETRANSMISSION", "WITHOUT_THE_SECOND_HALF"]

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="needs spin (package spin) and a C compiler",
)


def violations(folder: Path, *definitions: str, live: bool = False) -> str:
    """Return the error that SPIN's verifier finds in the model, or "" if it has seen every state and found none."""
    options = [f"-D{definition}" for definition in definitions]
    run(folder, "spin", "-a", *options, str(MODEL))
    kind = ["-DNFAIR=3"] if live else ["-DSAFETY", "-DNOCLAIM"]
    run(folder, "cc", "-O2", "-w", "-DMEMLIM=4000", *kind, "-o", "pan", "pan.c")
    said = run(folder, "./pan", "-m100000", *(["-a", "-f"] if live else []))
    errors = re.search(r"errors: (\d+)", said)
    assert errors, said
    assert "max search depth too small" not in said, said
    if errors[1] == "0":
        return ""
    return said.splitlines()[0]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_no_sum_is_wrong_and_nobody_is_stuck(tmp_path: Path) -> None:
    assert violations(tmp_path, "ROUNDS=4") == ""


@pytest.mark.slow
def test_every_operation_ends_once_loss_ends(tmp_path: Path) -> None:
    assert violations(tmp_path, "ROUNDS=3", live=True) == ""


@pytest.mark.parametrize("protection", [SAFETY[0], *(pytest.param(one, marks=pytest.mark.slow) for one in SAFETY[1:])])
def test_it_is_unsafe(tmp_path: Path, protection: str) -> None:
    assert "assertion violated" in violations(tmp_path, "ROUNDS=3", protection)


@pytest.mark.parametrize(
    "protection", [LIVENESS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in LIVENESS[1:])]
)
def test_it_does_not_end(tmp_path: Path, protection: str) -> None:
    assert "acceptance cycle" in violations(tmp_path, "ROUNDS=3", protection, live=True)
