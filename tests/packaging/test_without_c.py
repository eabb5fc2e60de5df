# SPDX-License-Identifier: Apache-2.0
"""A wheel without its C libraries is made only for who asks for that: else the build fails and says what to do."""

from __future__ import annotations

import importlib.util
import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_COMPILER = {"CC": "/no/such/compiler"}

pytestmark = pytest.mark.slow


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Make a wheel in a folder, with the build tools of this environment."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("needs scikit-build-core")
    inherited = {name: value for name, value in os.environ.items() if name not in ("P4REDUCE_PURE", "CC", "CFLAGS")}
    # Ninja and CMake of the environment that this runs in.
    inherited["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder), str(ROOT)]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        env={**inherited, **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "why"),
    [(NO_COMPILER, "no C compiler: install gcc or clang"), ({"CFLAGS": "-Dload_16=16"}, "load_16")],
    ids=["no compiler", "code that does not compile"],
)
def test_a_build_without_the_libraries_fails(tmp_path: Path, environment: dict[str, str], why: str) -> None:
    done = build(tmp_path, **environment)
    assert done.returncode != 0
    assert why in done.stdout
    assert "p4reduce was not built" in done.stdout
    assert "P4REDUCE_PURE=1" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_package_of_python_alone_for_who_asks(tmp_path: Path) -> None:
    done = build(tmp_path, **NO_COMPILER, P4REDUCE_PURE="1")
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".h"))]
        archive.extractall(installed)
    # Without `site`, which would find the p4reduce that is installed here.
    path = os.pathsep.join([str(installed), *site.getsitepackages()])
    said = subprocess.run(
        [sys.executable, "-S", "-c", "import p4reduce; print(p4reduce.backend())"],
        env={"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert said == "python: libp4reduce.so was not installed: this p4reduce was built without C (P4REDUCE_PURE=1)\n"
