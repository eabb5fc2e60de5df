# SPDX-License-Identifier: Apache-2.0
"""How commands end."""

import pytest
import typer

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.endings import command


def test_an_error_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and all: rich would take some for markup."""
    with pytest.raises(typer.Exit) as ended, command():
        raise P4ReduceError("[/build/transport.cc:78] [bold]connection closed")
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == ("", "error: [/build/transport.cc:78] [bold]connection closed\n")


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, command(stopped="so far"):
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    assert capsys.readouterr() == ("", "so far\n")
