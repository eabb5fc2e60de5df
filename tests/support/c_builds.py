# SPDX-License-Identifier: Apache-2.0
"""Builds of the C sources by CMake and ninja. They stay in build/, so the next run compiles only changes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ("-DP4REDUCE_WERROR=ON", "-DP4REDUCE_FUZZ=ON")


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}")
    return path


def run(*command: str | Path, timeout: float = 250, **variables: str) -> str:
    """Run a command and return its output. If it fails, the AssertionError contains the output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"
    return done.stdout


def sanitized(compiler: str, *targets: str, sanitizers: str = "address,undefined") -> Path:
    """Build targets with sanitizers, and return the folder of the build. The compiler is gcc or clang."""
    tool(compiler)
    cmake, ninja = tool("cmake"), tool("ninja")
    folder = ROOT / "build" / "tests" / f"{compiler}-{sanitizers.replace(',', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        tools = (f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_MAKE_PROGRAM={ninja}")
        run(cmake, "-G", "Ninja", "-S", ROOT, "-B", folder, *tools, *OPTIONS, f"-DP4REDUCE_SANITIZE={sanitizers}")
        run(cmake, "--build", folder, "--target", *targets)
    return folder
