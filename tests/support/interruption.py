# SPDX-License-Identifier: Apache-2.0
"""Commands started as by a user, and a check that an interrupted command leaves no processes behind."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

MARK = "P4REDUCE_TEST_RUN"
"""An environment variable that all processes of a run inherit."""


def start(mark: str, *command: str, errors: int = subprocess.STDOUT, **environment: str) -> "subprocess.Popen[str]":
    """Start `p4reduce COMMAND` with a mark.

    errors: the destination of its standard error, as for Popen.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "p4reduce", *command], stdout=subprocess.PIPE, stderr=errors, text=True,
        start_new_session=True, env={**os.environ, MARK: mark, **environment},
    )  # fmt: skip


def marked(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that have the mark in their environment, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def interrupt(process: "subprocess.Popen[str]", mark: str, how: signal.Signals, processes: int = 5) -> str:
    """Wait until `processes` run, send the signal `how`, assert that all end, and return the command's output."""
    try:
        return _interrupt(process, mark, how, processes)
    finally:
        process.kill()
        for left in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def _interrupt(process: "subprocess.Popen[str]", mark: str, how: signal.Signals, processes: int) -> str:
    wait_until(lambda: len(marked(mark)) >= processes or process.poll() is not None, lambda: marked(mark), 100)
    assert process.poll() is None, process.communicate()
    process.send_signal(how)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + how
    wait_until(lambda: not marked(mark), lambda: f"left over: {marked(mark)}", 15)
    return output
