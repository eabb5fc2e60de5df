# SPDX-License-Identifier: Apache-2.0
"""The console script: without the packages of the command line, and as a shell completes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p4reduce.commands.entry import NEEDED

WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NEEDED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def test_without_the_command_lines_packages_it_says_what_to_install() -> None:
    done = python(WITHOUT + "from p4reduce.commands.entry import main; main()")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "p4reduce: the command line needs the package 'typer', and training does not: pip install 'p4reduce[cli]'\n"
    )


def test_another_missing_package_is_not_hidden() -> None:
    program = """
import sys
sys.modules["p4reduce.commands.cli"] = None
from p4reduce.commands.entry import main
main()
"""
    done = python(program)
    assert "ModuleNotFoundError" in done.stderr
    assert "p4reduce[cli]" not in done.stderr


def test_training_needs_none_of_them() -> None:
    program = """
import p4reduce, p4reduce.ddp, p4reduce.control.client
from p4reduce import Communicator, backend, shared_empty
import p4reduce.distributed
p4reduce.distributed.register()
"""
    done = python(WITHOUT + program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "most"),
    [("import p4reduce", 6), ("import p4reduce.distributed", 8)],
)
def test_an_import_brings_in_little(program: str, most: int) -> None:
    """Beside Python's own, in modules, of which the first is what every program with torch pays at its start."""
    counted = f"""
import sys
import typing, dataclasses, importlib, collections.abc, datetime, enum, logging, math, os, re, threading
before = set(sys.modules)
{program}
new = set(sys.modules) - before
print(*sorted(new))
"""
    done = python(counted)
    assert done.returncode == 0, done.stderr
    new = done.stdout.split()
    assert {name.partition(".")[0] for name in new} <= {"p4reduce"} | set(sys.stdlib_module_names), new
    assert len([name for name in new if name.startswith("p4reduce")]) <= most, new
    assert len(new) <= 40, new


def completed(*words: str) -> set[str]:
    """What bash offers for the last word."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not on PATH")
    script = """
p4reduce() { "$PYTHON" -m p4reduce "$@"; }
eval "$(_P4REDUCE_COMPLETE=source_bash "$PYTHON" -m p4reduce)"
function=$(complete -p p4reduce | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
"$function" "$COMMAND"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    folder = Path(os.environ["P4REDUCE_TEST_BIN"])
    environment = {**os.environ, "PYTHON": sys.executable, "COMMAND": str(folder / "p4reduce")}
    done = subprocess.run(
        [bash, "-c", script, "bash", *words], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console script as pip makes it."""
    script = tmp_path / "p4reduce"
    script.write_text(f"#!{sys.executable}\nfrom p4reduce.commands.entry import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.setenv("P4REDUCE_TEST_BIN", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["p4reduce", "sw"], {"switch", "switches"}),
        (["p4reduce", "jobs", ""], {"list", "show", "abort"}),
        (["p4reduce", "controller", "--switch-c"], {"--switch-ca", "--switch-cert"}),
        (["p4reduce", "switch", "--target", ""], {"sim", "native", "bmv2"}),
    ],
)
def test_bash_completes(words: list[str], offered: set[str]) -> None:
    assert completed(*words) == offered
