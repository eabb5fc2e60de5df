# SPDX-License-Identifier: Apache-2.0
"""`python p4src/compile.py` as a user runs it, with a p4c that only says what it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "p4src" / "compile.py"
P4C = """#!/bin/sh
echo "$@" >> "$SAID"
while [ $# -gt 0 ]; do
    case "$1" in
        -o) echo '{"a": 1}' > "$2" ;;
        --p4runtime-files) echo info > "$2" ;;
    esac
    shift
done
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    p4c = tmp_path / "bin" / "p4c-bm2-ss"
    p4c.parent.mkdir()
    p4c.write_text(P4C)
    p4c.chmod(0o755)
    return {**os.environ, "PATH": f"{p4c.parent}:{os.environ['PATH']}", "SAID": str(tmp_path / "said")}


def compile_with(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_its_help_is_its_own(environment: dict[str, str], tmp_path: Path) -> None:
    done = compile_with(environment, "--help")
    assert done.returncode == 0
    assert "--out FOLDER" in done.stdout
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize("option", ["-o", "--out"])
def test_it_writes_where_it_is_told_and_nowhere_else(environment: dict[str, str], tmp_path: Path, option: str) -> None:
    shipped = SCRIPT.parent / "compiled" / "p4reduce.json"
    before = shipped.read_bytes()
    try:
        done = compile_with(environment, "-DLANES=8", option, str(tmp_path / "out"), "-DSLOTS=32")
        assert done.returncode == 0, done.stderr
        assert shipped.read_bytes() == before
    finally:
        shipped.write_bytes(before)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["p4info.txtpb", "p4reduce.json"]
    assert " -DLANES=8 -DSLOTS=32 " in (tmp_path / "said").read_text()


def test_all_builds_into_a_folder(environment: dict[str, str], tmp_path: Path) -> None:
    assert compile_with(environment, "-o", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out" / "jumbo" / "p4reduce.json").exists()


def test_a_file_is_no_folder(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = compile_with(environment, "-o", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "a folder is accepted, and this is a file" in done.stderr
