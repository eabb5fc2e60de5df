# SPDX-License-Identifier: Apache-2.0
"""The command line finds its commands, and says what is missing."""

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from p4reduce import cli
from p4reduce.commands import command
from p4reduce.errors import P4ReduceError

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


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise ModuleNotFoundError("No module named 'finsy'", name="finsy")

    monkeypatch.setattr(cli, "import_module", fail)
    result = runner.invoke(cli.app, ["controller"])
    assert result.exit_code == 1
    assert "pip install 'p4reduce[controller]'" in result.output


def test_an_error_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and all: rich would take some for markup."""
    with pytest.raises(typer.Exit) as ended, command(Console(width=200)):
        raise P4ReduceError("[/build/transport.cc:78] [bold]connection closed")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out == "error: [/build/transport.cc:78] [bold]connection closed\n"


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(Console(), stopped="so far"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr().out == "so far\n"
