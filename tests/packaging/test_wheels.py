# SPDX-License-Identifier: Apache-2.0
"""Contents of the two wheels and of each extra, and the error that names the extra with the missing tools."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def packages(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in names(wheel) if ".dist-info/" not in name}


def modules(folder: Path) -> set[str]:
    return {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")}


def test_the_training_wheel_has_no_tools(wheels: Mapping[str, Path]) -> None:
    wheel = wheels["p4reduce"]
    ours = {"p4reduce", "p4reduce_controller", "p4reduce_simulator", "p4reduce_targets", "p4reduce_topos"}
    assert packages(wheel) == {*ours, "p4reduce_bench"}
    shared = {name.split("/")[1] for name in names(wheel) if name.startswith("p4reduce_bench/")}
    assert shared == {"__init__.py", "outputs.py", "recordings.py", "allreduce", "peers", "processes"}
    assert names(wheel) >= {
        "p4reduce/fastpath/libp4reduce.so",
        "p4reduce/fastpath/include/p4reduce.h",
        "p4reduce/py.typed",
        "p4reduce_controller/compiled/p4reduce.json",
        "p4reduce_controller/compiled/p4info.txtpb",
        "p4reduce_controller/compiled/jumbo/p4reduce.json",
        "p4reduce_controller/compiled/jumbo/p4info.txtpb",
        "p4reduce_simulator/libp4reduce_simulator.so",
        "p4reduce_targets/native/libp4reduce_native.so",
    }
    assert any(name.endswith("/LICENSE") for name in names(wheel))
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "any" not in wheel.name


def test_every_module_is_in_its_wheel(wheels: Mapping[str, Path]) -> None:
    sources = ("hostlib", "controller", "targets", "simulator", "bmv2_topos", "bench")
    folders = [package for folder in sources for package in (ROOT / folder).glob("p4reduce*")]
    ours = {module for package in folders for module in modules(package)}
    ours.add("p4reduce_controller/compiled/__init__.py")  # from p4src/
    first, second = ({file for file in names(wheel) if file.endswith(".py")} for wheel in wheels.values())
    assert first | second == ours
    assert not first & second


def test_the_tools_are_a_wheel_for_every_machine(wheels: Mapping[str, Path]) -> None:
    wheel = wheels["bench"]
    assert packages(wheel) == {"p4reduce_bench"}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert any(name.endswith("/LICENSE") for name in names(wheel))


def run_from(wheel: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the wheel alone: -S leaves out the editable install. What p4reduce depends on is there."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    paths = [str(folder), str(Path(typer.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {paths}; from p4reduce.commands.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_simulations_need_no_tools(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    for arguments in (
        ["simulate", "--ranks", "2", "--numel", "1000", "--density", "1"],
        ["plan", "1000", "--workers", "2", "--systems", "ring"],
    ):
        run = run_from(wheels["p4reduce"], tmp_path, *arguments)
        assert run.returncode == 0, run.stderr


def test_a_training_host_is_told_the_extra(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    for arguments in (["bench"], ["demo", "--workers", "2"], ["analyze", "gradients"]):
        run = run_from(wheels["p4reduce"], tmp_path, *arguments)
        assert run.returncode == 1
        assert "pip install 'p4reduce[bench]'" in run.stderr


SIZES = {"": 150, "cli": 190, "scapy": 230, "targets": 300, "controller": 330, "tracing": 350, "topos": 500}
"""MB at most of an environment into which the extras are installed one after the other."""
HEAVY = {"torch", "triton"}


def test_extras_install_from_the_wheels_alone(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    """No index has p4reduce; what it depends on comes from one."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True, timeout=120)
    python = tmp_path / "clean" / "bin" / "python"
    found = [part for wheel in wheels.values() for part in ("--find-links", str(wheel.parent))]

    def pip(*arguments: str) -> str:
        command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        if "Could not find a version that satisfies the requirement numpy" in done.stderr:
            pytest.skip("needs a package index")
        assert done.returncode == 0, done.stderr
        return done.stdout

    for extra, most in SIZES.items():
        pip("install", "-q", "--no-compile", *found, f"{wheels['p4reduce']}[{extra}]" if extra else "p4reduce")
        came = {one["name"].lower() for one in json.loads(pip("list", "--format", "json"))}
        assert not came & {*HEAVY, "p4reduce-bench"}, extra
        assert sum(file.stat().st_size for file in (tmp_path / "clean").rglob("*") if file.is_file()) < most * 1e6, (
            extra
        )
    pip("check")
    for command in (["topo", "list"], ["topo", "experiment", "list"], ["controller", "--help"], ["switch", "--help"]):
        run = subprocess.run([python, "-I", "-m", "p4reduce", *command], capture_output=True, text=True, timeout=60,
                             check=False)  # fmt: skip
        assert run.returncode == 0, run.stderr
    # The extra `bench` has the other wheel and PyTorch, which is gigabytes.
    pip("install", "-q", "--no-deps", "--no-index", *found, "p4reduce-bench")
    for command, said in (
        (["demo", "--help"], ""),
        (["demo"], "needs the package 'torch'"),
        (["bench", "train"], "needs the package 'torch'"),
    ):
        run = subprocess.run([python, "-I", "-m", "p4reduce", *command], capture_output=True, text=True, timeout=60,
                             check=False)  # fmt: skip
        assert said in run.stderr
        assert "Traceback" not in run.stderr


def test_both_have_one_license() -> None:
    assert (ROOT / "bench" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
