# SPDX-License-Identifier: Apache-2.0
"""How commands end."""

import subprocess
import sys

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


INTERRUPTED_TWICE = """
import signal
import typer
from p4reduce_bench.processes.endings import command

try:
    with command(stopped="so far"):
        raise KeyboardInterrupt
except typer.Exit as ending:
    signal.raise_signal(signal.SIGINT)
    raise SystemExit(ending.exit_code)
"""


def test_ctrl_c_ends_with_130_also_if_it_comes_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_TWICE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "so far\n")
