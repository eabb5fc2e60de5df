# SPDX-License-Identifier: Apache-2.0
"""Commands that `make` would run, as it prints them with -n."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands(tmp_path: Path, *arguments: str) -> str:
    """Return the commands that make would run in a project that is not set up."""
    command = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path / 'environment'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("asked", ["--help", "-h", "--workers 2 --help"])
def test_help_of_the_demo_installs_what_prints_it_alone(tmp_path: Path, asked: str) -> None:
    said = commands(tmp_path, "demo", f"ARGS={asked}")
    assert "typer" in said
    assert f"-m p4reduce demo {asked}" in said
    for heavy in ("torch", "[dev]", "cmake", "apt-get"):
        assert heavy not in said


def test_the_demo_itself_is_set_up(tmp_path: Path) -> None:
    said = commands(tmp_path, "demo", "ARGS=--workers 2")
    assert "torch==" in said
    assert "p4reduce demo --workers 2" in said


def test_set_up_shows_how_far_it_is(tmp_path: Path) -> None:
    said = commands(tmp_path, "setup")
    steps = [said.index(f'echo "{step}/3 ') for step in (1, 2, 3)]
    assert steps == sorted(steps)
    longest = [line for line in said.splitlines() if "'.[dev]'" in line]
    assert longest
    assert not any(" -q " in line for line in longest)
