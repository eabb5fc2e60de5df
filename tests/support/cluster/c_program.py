# SPDX-License-Identifier: Apache-2.0
"""The C example program, compiled and run as a rank."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.c_library import needs_c_library
from tests.support.cluster.stack import Stack

CSRC = Path(__file__).parents[3] / "hostlib" / "csrc"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_c_library()
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    flags = subprocess.run([sys.executable, "-m", "p4reduce.fastpath"], check=True, capture_output=True, text=True)
    program = tmp_path_factory.mktemp("example") / "allreduce"
    command = ["cc", "-Wall", "-Wextra", "-Werror", f"-I{CSRC / 'include'}", CSRC / "examples" / "allreduce.c"]
    subprocess.run([*command, "-o", program, *shlex.split(flags.stdout)], check=True)
    return program


def start(
    stack: Stack, job: str, rank: int, *command: str | Path, world_size: int = 2, **options: object
) -> subprocess.Popen[str]:
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with stack.entered():
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "p4reduce", "exec", "--job", job, "--rank", str(rank)),
                *("--world-size", str(world_size)),
                *("--controller", stack.controller, *arguments, "--", *map(str, command)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def complaints(errors: str) -> list[str]:
    """Return the lines of a rank's standard error, except the notice that it waits for the other ranks.

    On a busy machine, the other ranks may join seconds later.
    """
    return [line for line in errors.splitlines() if not line.startswith("this rank waits for its job to begin")]
