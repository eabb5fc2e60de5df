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


CONTAINER = """#!/bin/sh
echo "{name} $@" >> "$SAID"
[ "$1" = run ] || exit $INFO
shift
while [ "$1" != p4c-bm2-ss ]; do shift; done
exec "$@"
"""


@pytest.fixture
def containers(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return an environment with a fake Docker and Podman, which run their image's command on this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("docker", "podman"):
        (tools / name).write_text(CONTAINER.format(name=name))
        (tools / name).chmod(0o755)
    return {**environment, "PATH": f"{tools}:{environment['PATH']}", "INFO": "0"}


@pytest.mark.parametrize(("name", "owner"), [("docker", f"--user {os.getuid()}:{os.getgid()}"), ("podman", "keep-id")])
def test_in_a_container(containers: dict[str, str], tmp_path: Path, name: str, owner: str) -> None:
    """The compiler has the sources, and a folder for what it writes, under the names that they have here."""
    done = compile_with({**containers, "P4C_IMAGE": ""}, "--p4c", name, "-DLANES=1", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    info, run, compiler = (tmp_path / "said").read_text().splitlines()
    assert info == f"{name} info"
    for part in (
        f"{name} run --rm ",
        owner,
        f"--volume={SCRIPT.parent}:{SCRIPT.parent}:ro ",
        " p4lang/p4c:latest p4c-bm2",
    ):
        assert part in run
    written = Path(compiler.split(" -o ")[1].split()[0]).parent
    assert f"--volume={written}:{written} " in run
    assert (tmp_path / "out" / "p4info.txtpb").read_text() == "info\n"


def test_another_image(containers: dict[str, str], tmp_path: Path) -> None:
    done = compile_with(
        {**containers, "P4C_IMAGE": "own/p4c:3"}, "--p4c", "docker", "-D_=1", "-o", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr
    assert " own/p4c:3 p4c-bm2-ss " in (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("tools", "arguments", "message"),
    [
        ((), (), "p4c-bm2-ss is not on PATH. It comes with p4c: install the P4 project's package p4lang-p4c"),
        ((), (), "P4C=docker (compile.py --p4c docker) where Docker or Podman is installed"),
        (("podman",), (), "with make p4 P4C=podman (compile.py --p4c podman). "),
        (("docker",), ("--p4c", "docker"), "docker is installed, but cannot run containers here: exit code 1"),
        ((), ("--p4c", "docker"), "docker is not on PATH, so p4c-bm2-ss cannot run in a container"),
        ((), ("--p4c", "lxc"), "invalid choice: 'lxc' (choose from"),
    ],
)
def test_without_a_compiler(tmp_path: Path, tools: tuple[str, ...], arguments: tuple[str, ...], message: str) -> None:
    """The command says at once that the compiler is missing, and what to do on this machine."""
    for name in tools:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = compile_with({"PATH": str(tmp_path)}, *arguments, "-o", str(tmp_path / "out"))
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["p4", "p4-tofino"])
def test_make_installs_nothing_first(tmp_path: Path, target: str) -> None:
    """A missing tool is reported before anything else is made."""
    makefile = SCRIPT.parents[1] / "Makefile"
    command = ["make", "--no-print-directory", "-n", "-f", str(makefile), target, "P4C=docker", f"VENV={tmp_path}/none"]
    done = subprocess.run(command, cwd=makefile.parent, capture_output=True, text=True, check=True)
    steps = done.stdout.splitlines()
    assert len(steps) == 1
    assert "p4src/compile.py --p4c docker" in steps[0] or target == "p4-tofino"


def test_a_file_is_no_folder(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = compile_with(environment, "-o", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "must be a folder, and this is a file" in done.stderr
