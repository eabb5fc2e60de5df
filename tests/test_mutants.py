# SPDX-License-Identifier: Apache-2.0
"""The tests notice when a protection is taken out of the Python or C code: each mutant must fail its test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .support.c_builds import ROOT, run, tool
from .support.mutants import IN_C, IN_NATIVE, IN_PYTHON, Mutant, check_that_it_fails


def test_each_protection_is_there() -> None:
    for mutant in [*IN_PYTHON.values(), *IN_C.values(), *IN_NATIVE.values()]:
        assert mutant.source()


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_protection_taken_out_of_python_is_noticed(name: str) -> None:
    check_that_it_fails(IN_PYTHON[name].test, "-p", "tests.support.mutants", P4REDUCE_MUTANT=name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutants", "target", "library", "variable"),
    [
        (IN_C, "p4reduce", "hostlib/csrc/libp4reduce.so", "P4REDUCE_LIBRARY"),
        (IN_NATIVE, "p4reduce_native", "targets/csrc/libp4reduce_native.so", "P4REDUCE_NATIVE_LIBRARY"),
    ],
)
def test_a_protection_taken_out_of_c_is_noticed(
    tmp_path: Path, mutants: dict[str, Mutant], target: str, library: str, variable: str
) -> None:
    for part in ("CMakeLists.txt", "hostlib/csrc", "hostlib/p4reduce/fastpath", "targets/csrc", "simulator/csrc"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, tmp_path / part)
    cmake, ninja, build = tool("cmake"), tool("ninja"), tmp_path / "build"
    options = (f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DCMAKE_BUILD_TYPE=Debug")
    run(cmake, "-G", "Ninja", *options, "-S", tmp_path, "-B", build)
    for mutant in mutants.values():
        file = tmp_path / mutant.file.relative_to(ROOT)
        file.write_text(mutant.source())
        run(cmake, "--build", build, "--target", target)
        check_that_it_fails(mutant.test, **{variable: str(build / library)})
        file.write_text(mutant.file.read_text())
