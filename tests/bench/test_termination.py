# SPDX-License-Identifier: Apache-2.0
"""Tests of the ways in which commands end."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import typer

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.termination import command
from tests.support.interruption import interrupt, start


def test_an_error_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets and all: rich would take some for markup."""
    with pytest.raises(typer.Exit) as ended, command():
        raise P4ReduceError("[/build/transport.cc:78] [bold]connection closed")
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == ("", "error: [/build/transport.cc:78] [bold]connection closed\n")


INTERRUPTED_TWICE = """
import signal
import typer
from p4reduce_bench.processes.termination import command

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


ENDLESS = {
    "allreduce": "bench allreduce --workers 2 --numel 4096 --repeat 100000 --systems p4reduce",
    "train": "bench train --model ncf --systems p4reduce --steps 100000",
    "gradients": "bench gradients --models recommender --workers 2 --steps 1 --batch 64 --sparsify none "
    "--systems p4reduce --repeat 100000",
    "demo": "demo --workers 2 --steps 100000",
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("allreduce", signal.SIGINT),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("train", signal.SIGINT), ("gradients", signal.SIGINT), ("allreduce", signal.SIGTERM),
                ("demo", signal.SIGINT), ("demo", signal.SIGHUP),
            )
        ),
    ],
)  # fmt: skip
def test_nothing_is_left_of_a_command_that_is_interrupted(name: str, how: signal.Signals, tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    process = start(mark, *ENDLESS[name].split(), TMPDIR=str(tmp_path))
    said = interrupt(process, mark, how)
    assert how != signal.SIGINT or "nothing is left running" in said
    assert not list(tmp_path.glob("p4reduce-*"))
