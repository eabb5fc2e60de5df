# SPDX-License-Identifier: Apache-2.0
"""The example program in C, in jobs with other programs and with Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from p4reduce import Communicator
from tests.support.cluster.c_program import complaints, start
from tests.support.cluster.stack import Setting, Stack

from .ways import ONE_SWITCH

# C programs have the transports "udp" and "raw".
C_WAYS = [way for way in ONE_SWITCH if "scapy" not in str(way)]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("sim-udp", marks=pytest.mark.slow),
        *(way for way in C_WAYS if way != "sim-udp"),
        *(pytest.param(way, marks=pytest.mark.slow) for way in ("aggregators", "threads")),
        "tree",
    ],
    indirect=True,
)
def test_example(setting: Setting, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tree, each rank gets its peers and its worker number at its switch, which is not its rank."""
    options = dict(setting.options)
    switches, interfaces = options.pop("at", None), options.pop("interfaces", None)
    ranks = []
    for rank in range(4):
        if switches:
            monkeypatch.setenv("P4REDUCE_SWITCH", switches[rank % 2])
        own = {"interface": f"{interfaces}{rank}"} if interfaces else {}
        ranks.append(start(setting.stack, "C", rank, program, "100000", world_size=4, **options, **own))
    for one in ranks:
        output, errors = one.communicate(timeout=60)
        assert (one.returncode, complaints(errors)) == (0, [])
        assert output.startswith("sum 2, wrong 0, packets ")


def test_beside_python(native_udp_stack: Stack, program: Path) -> None:
    """Ranks need not be of one kind."""
    other = start(native_udp_stack, "mixed", 1, program, "1000")
    with Communicator(native_udp_stack.controller, job="mixed", rank=0, world_size=2) as communicator:
        values = np.zeros(1000, np.float32)
        values[::100] = 0.5
        assert communicator.allreduce(values).sum() == 10
    output, errors = other.communicate(timeout=60)
    assert other.returncode == 0, errors
    assert output.startswith("sum 1, wrong 0")


def test_a_program_that_fails_ends_the_job(native_udp_stack: Stack, program: Path) -> None:
    fails = start(native_udp_stack, "fails", 0, "false")
    other = start(native_udp_stack, "fails", 1, program, "1000")
    assert fails.wait(60) == 1
    output, errors = other.communicate(timeout=60)
    assert (other.returncode, output) == (1, "")
    assert "rank 0" in errors
    fails.communicate()


def test_a_program_that_cannot_be_run(native_udp_stack: Stack, tmp_path: Path) -> None:
    """The error comes when the program is started, and not before."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    ranks = [start(native_udp_stack, "nothing", rank, broken) for rank in range(2)]
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    # The second may first hear that the other is gone.
    assert any(f"p4reduce exec: cannot run {broken}: No such file or directory" in each for each in errors)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_too(native_udp_stack: Stack, number: signal.Signals) -> None:
    rank = start(native_udp_stack, "signal", 0, "sh", "-c", "echo $$; exec sleep 60", world_size=1)
    assert rank.stdout is not None
    program = int(rank.stdout.readline())
    try:
        rank.send_signal(number)
        assert rank.communicate(timeout=10)[0] == ""  # nobody has its output any more
        assert rank.returncode == 128 + number
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_other_ranks(native_udp_stack: Stack, number: signal.Signals) -> None:
    """Rank 0's program has ended, while rank 1's program still runs."""
    waiting = start(native_udp_stack, f"waits {number}", 0, "echo", "done")
    other = start(native_udp_stack, f"waits {number}", 1, "sleep", "60")
    try:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "done\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        waiting.send_signal(number)
        assert waiting.wait(10) != 0
    finally:
        for rank in (waiting, other):
            rank.send_signal(signal.SIGTERM)
            rank.communicate(timeout=20)


def test_a_program_outside_of_a_job(program: Path) -> None:
    ended = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error 1: P4REDUCE_SEAT is not set: start this program with `p4reduce exec -- program`\n"
