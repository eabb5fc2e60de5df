# SPDX-License-Identifier: Apache-2.0
"""Blocks of C, of settings, and of what a terminal shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from p4reduce_controller.settings.settings import load
from tests.support.document_blocks import ROOT, Block, every, only


@pytest.mark.parametrize("block", every("c"), ids=str)
def test_c_compiles(block: Block, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs cc")
    start = "#include <stdio.h>\n#include <p4reduce.h>\nvoid block(float *values, size_t count);\n"
    (tmp_path / "block.c").write_text(f"{start}void block(float *values, size_t count) {{\n{block.text}}}\n")
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "block.c"]
    command.append(f"-I{ROOT / 'hostlib' / 'csrc' / 'include'}")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", every("console"), ids=str)
def test_a_terminal_shows_that(block: Block) -> None:
    """The terminal's output is that of the command, except for the processor's instruction sets."""
    assert block.text.startswith("$ ")
    command, _, expected = block.text.removeprefix("$ ").partition("\n")
    path = sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.sub(r"\(.*?\)", "()", done.stdout) == re.sub(r"\(.*?\)", "()", expected)


def test_switches_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text(only("docs/running.md", "[[switches]]").text)
    settings = load(path, {})
    assert list(settings.uplinks()) == ["spine", "leaf1"]
    assert len(settings.switch_configs()) == 2
