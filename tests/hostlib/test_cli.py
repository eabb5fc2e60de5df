# SPDX-License-Identifier: Apache-2.0
"""Tests of the command line, of the modules that an import loads, and of the console script's completion.

The command line finds its commands, names missing packages, and has help that rich prints as it is written.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

import p4reduce
from p4reduce.commands import cli, launching
from p4reduce.commands.entry import NEEDED

runner = CliRunner()


def test_help_names_every_command() -> None:
    output = runner.invoke(cli.app, ["--help"]).output
    assert all(name in output for name in cli.COMMANDS)


def test_version() -> None:
    assert runner.invoke(cli.app, ["--version"]).output.startswith("p4reduce 0.")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_of_which_nothing_is_taken_for_markup(name: str) -> None:
    result = runner.invoke(cli.app, [name, "--help"])
    assert result.exit_code == 0
    assert f"p4reduce {name}" in result.output
    pytest.importorskip(cli.COMMANDS[name].target.partition(":")[0])
    for path, text in helps(cli.load(name), name):
        assert Text.from_markup(text).plain == text.replace("\\[", "["), path


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("controller", "finsy", "controller"),
        ("demo", "p4reduce_bench", "bench"),
        ("topo", "p4reduce_bench.cli", "topos"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str) -> None:
    def fail(_: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "import_module", fail)
    result = runner.invoke(cli.app, [name])
    assert result.exit_code == 1
    assert f"pip install 'p4reduce[{extra}]'" in result.output


def without(*packages: str) -> str:
    """Return the beginning of a program that finds none of these packages."""
    return f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


CONTROLLER = """
from p4reduce.commands.cli import app
app(["controller", "--listen", "127.0.0.1:0", "--switch", "127.0.0.1:9", "--switch-timeout", "0.01", *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("package", "options"), [("finsy", []), ("prometheus_client", []), ("aiohttp", ["--metrics", "127.0.0.1:0"])]
)
def test_a_package_that_is_needed_later_is_named_too(package: str, options: list[str]) -> None:
    """The controller's command imports most when it begins to serve."""
    done = python(without(package) + CONTROLLER, *options)
    assert done.returncode == 1
    assert done.stderr == f"p4reduce controller needs the package {package!r}: pip install 'p4reduce[controller]'\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--transport raw --threads 2 -- true",
            "threads=2 with the transport 'raw': accepted is 1; only the transport 'udp' accepts more",
        ),
        ("--transport scapy -- true", "transport='scapy': accepted for programs in C are udp, raw"),
        ("--threads 17 -- true", "threads=17: must be an integer from 1 to 16"),
        ("-- ./no-such-program", "cannot run ./no-such-program: there is no executable program of that name"),
    ],
)
def test_what_no_program_can_use_is_refused_before_joining(options: str, said: str) -> None:
    """No controller listens at that port, so the error comes before a connection is tried."""
    controller = ["--controller", "127.0.0.1:1", "--timeout", "0.1"]
    result = runner.invoke(launching.app, ["--rank", "0", "--world-size", "1", *controller, *options.split()])
    assert result.exit_code == 1
    assert result.output == f"p4reduce exec: {said}\n"


@pytest.mark.parametrize(
    "words", [["exec", "--rank", "0", "--world-size", "1"], ["trace", "record", "mine"], ["status"], ["doctor"]]
)
def test_what_asks_a_controller_is_told_in_the_same_way_how(words: list[str]) -> None:
    end = ["--", "true"] if words[0] == "exec" else []
    told = runner.invoke(cli.app, [*words, "--token-file", "/nowhere/token", "--tls-ca", "/nowhere/ca", *end])
    assert told.exit_code == 1
    assert "--token-file: cannot read /nowhere/token" in " ".join(told.output.split())


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command, of its parameters, and of all commands below it."""
    yield path, command.help or ""
    for one in command.params:
        yield f"{path} {one.name}", getattr(one, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


def test_without_the_command_lines_packages_it_says_what_to_install() -> None:
    done = python(without(*NEEDED) + "from p4reduce.commands.entry import main; main()")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "p4reduce: the command line needs the package 'typer', and training does not: pip install 'p4reduce[cli]'\n"
    )


def test_another_missing_package_is_not_hidden() -> None:
    done = python(
        "import sys; sys.modules['p4reduce.commands.cli'] = None; from p4reduce.commands.entry import main; main()"
    )
    assert "ModuleNotFoundError" in done.stderr
    assert "p4reduce[cli]" not in done.stderr


def test_training_needs_none_of_them() -> None:
    program = """
import p4reduce, p4reduce.ddp, p4reduce.control.client
from p4reduce import Communicator, backend, shared_empty
import p4reduce.distributed
p4reduce.distributed.register()
"""
    done = python(without(*NEEDED) + program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "most"),
    [("import p4reduce", 6), ("import p4reduce.distributed", 8)],
)
def test_an_import_brings_in_little(program: str, most: int) -> None:
    """Limits count our modules besides Python's own. The first is the cost of every program that imports torch."""
    new = loaded("import typing, dataclasses, importlib, datetime, enum, logging, math, os, re, threading", program)
    assert {name.partition(".")[0] for name in new} <= {"p4reduce"} | set(sys.stdlib_module_names), new
    assert len([name for name in new if name.startswith("p4reduce")]) <= most, new
    assert len(new) <= 40, new


USE_ARRAYS = (
    "import numpy as np; from p4reduce.tensors import spec, staging; array = np.zeros(3, np.float32); "
    "staging.numbers(array, spec.describe(array), np.float32).write_back()"
)


@pytest.mark.parametrize(
    ("program", "without"),
    [
        ("import p4reduce; p4reduce.Communicator", "torch scapy"),
        ("import p4reduce.control.client", "torch finsy scapy matplotlib prometheus_client p4reduce_controller"),
        (USE_ARRAYS, "torch"),
    ],
)
def test_what_is_not_needed_is_not_imported(program: str, without: str) -> None:
    assert not {name.partition(".")[0] for name in loaded("", program)} & set(without.split())


def loaded(before: str, program: str) -> set[str]:
    """Return the modules that a program loads."""
    done = python(f"import sys\n{before}\nbefore = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_everything_promised_is_there() -> None:
    assert {name for name in p4reduce.__all__ if getattr(p4reduce, name) is None} == set()
    assert p4reduce.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="'nothing'"):
        p4reduce.nothing  # type: ignore[attr-defined] # noqa: B018


def completed(*words: str) -> set[str]:
    """Return the completions that bash offers for the last word."""
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


@pytest.fixture
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the console script as pip does."""
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
        (["p4reduce", "switch", "--target", ""], {"sim", "native", "bmv2", "tofino"}),
    ],
)
@pytest.mark.usefixtures("_script")
def test_bash_completes(words: list[str], offered: set[str]) -> None:
    assert completed(*words) == offered
