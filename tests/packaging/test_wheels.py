# SPDX-License-Identifier: Apache-2.0
"""What is in the two wheels, and that a training host's says which extra has the tools."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def build(source: Path, to: Path) -> Path:
    """The wheel of what stands in `source`, with the build tools that are installed here."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", to, source], check=True, timeout=240)
    (wheel,) = to.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {
        name: build(source, tmp_path_factory.mktemp(name))
        for name, source in (("p4reduce", ROOT), ("bench", ROOT / "bench"))
    }


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def packages(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in names(wheel) if ".dist-info/" not in name}


def modules(folder: Path) -> set[str]:
    return {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*.py")}


def test_the_training_wheel_has_no_tools(wheels: Mapping[str, Path]) -> None:
    wheel = wheels["p4reduce"]
    assert packages(wheel) == {"p4reduce", "p4reduce_controller", "p4reduce_targets", "p4reduce_topos"}
    assert names(wheel) >= {
        "p4reduce/fastpath/libp4reduce.so",
        "p4reduce/fastpath/include/p4reduce.h",
        "p4reduce/py.typed",
        "p4reduce_controller/compiled/p4reduce.json",
        "p4reduce_controller/compiled/p4info.txtpb",
        "p4reduce_controller/compiled/jumbo/p4reduce.json",
        "p4reduce_controller/compiled/jumbo/p4info.txtpb",
        "p4reduce_targets/native/libp4reduce_native.so",
    }
    assert any(name.endswith("/LICENSE") for name in names(wheel))
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "any" not in wheel.name


def test_every_module_is_in_its_wheel(wheels: Mapping[str, Path]) -> None:
    sources = {"p4reduce": ("hostlib", "controller", "targets", "bmv2_topos"), "bench": ("bench",)}
    elsewhere = {"p4reduce": {"p4reduce_controller/compiled/__init__.py"}, "bench": set()}  # from p4src/
    for name, folders in sources.items():
        folders_of_packages = [package for folder in folders for package in (ROOT / folder).glob("p4reduce*")]
        ours = {module for package in folders_of_packages for module in modules(package)}
        assert ours
        assert ours | elsewhere[name] == {file for file in names(wheels[name]) if file.endswith(".py")}


def test_the_tools_are_a_wheel_for_every_machine(wheels: Mapping[str, Path]) -> None:
    wheel = wheels["bench"]
    assert packages(wheel) == {"p4reduce_bench"}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert any(name.endswith("/LICENSE") for name in names(wheel))


def test_a_training_host_is_told_the_extra(wheels: Mapping[str, Path], tmp_path: Path) -> None:
    """-S leaves out the editable install; what p4reduce depends on is there all the same."""
    with zipfile.ZipFile(wheels["p4reduce"]) as file:
        file.extractall(tmp_path)
    places = [str(tmp_path), sysconfig.get_path("purelib")]
    program = f"import sys; sys.path[:0] = {places}; from p4reduce.commands.cli import main; main()"
    for arguments in (["bench"], ["demo", "--workers", "2"], ["analyze", "gradients"]):
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert run.returncode == 1
        assert "pip install 'p4reduce[bench]'" in run.stderr


def test_both_have_one_license() -> None:
    assert (ROOT / "bench" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
