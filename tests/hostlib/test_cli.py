# SPDX-License-Identifier: Apache-2.0
"""The command line finds its commands, and says what is missing."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from p4reduce.commands import cli, launching

runner = CliRunner()


def test_help_names_every_command() -> None:
    output = runner.invoke(cli.app, ["--help"]).output
    assert all(name in output for name in cli.COMMANDS)


def test_version() -> None:
    assert runner.invoke(cli.app, ["--version"]).output.startswith("p4reduce 0.")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = runner.invoke(cli.app, [name, "--help"])
    assert result.exit_code == 0
    assert f"p4reduce {name}" in result.output


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


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from p4reduce.commands.cli import app
app(["controller", "--listen", "127.0.0.1:0", "--switch", "127.0.0.1:9", "--switch-timeout", "0.01", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    ("package", "options"), [("finsy", []), ("prometheus_client", []), ("aiohttp", ["--metrics", "127.0.0.1:0"])]
)
def test_a_package_that_is_needed_later_is_named_too(package: str, options: list[str]) -> None:
    """The controller's command imports most when it begins to serve."""
    command = [sys.executable, "-c", WITHOUT, package, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"p4reduce controller needs the package {package!r}: pip install 'p4reduce[controller]'\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--transport raw --threads 2",
            "threads=2 with the transport 'raw': accepted is 1; only the transport 'udp' accepts more",
        ),
        ("--transport scapy", "transport='scapy': accepted for programs in C are udp, raw"),
        ("--threads 17", "threads=17: must be an integer from 1 to 16"),
    ],
)
def test_what_no_program_in_c_can_use_is_refused_before_joining(options: str, said: str) -> None:
    """Nobody listens at that port."""
    controller = ["--controller", "127.0.0.1:1", "--timeout", "0.1"]
    given = ["--rank", "0", "--world-size", "1", *controller, *options.split(), "--", "true"]
    result = runner.invoke(launching.app, given)
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


def test_a_program_that_is_not_there_is_named_before_joining() -> None:
    """Nobody listens at that port."""
    given = ["--rank", "0", "--world-size", "1", "--controller", "127.0.0.1:1", "--", "./no-such-program"]
    result = runner.invoke(launching.app, given)
    assert result.exit_code == 1
    assert result.output == "p4reduce exec: cannot run ./no-such-program: there is no executable program of that name\n"
