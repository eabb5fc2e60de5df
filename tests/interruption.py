# SPDX-License-Identifier: Apache-2.0
"""Telling whether a command that is interrupted leaves processes behind."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

MARK = "P4REDUCE_TEST_RUN"
"""A variable of the environment that a run hands on to all that it starts."""


def marked(mark: str) -> list[int]:
    """Processes that run with our mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def interrupt(process: "subprocess.Popen[str]", mark: str, how: signal.Signals, processes: int = 5) -> str:
    """Waits until so many processes run, sends `how`, and requires all to end. Gives what the command had to say."""
    try:
        return _interrupt(process, mark, how, processes)
    finally:
        process.kill()
        for left in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def _interrupt(process: "subprocess.Popen[str]", mark: str, how: signal.Signals, processes: int) -> str:
    deadline = time.monotonic() + 100
    while len(marked(mark)) < processes:
        assert time.monotonic() < deadline, f"processes: {marked(mark)}"
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(how)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + how
    deadline = time.monotonic() + 5
    while marked(mark):
        assert time.monotonic() < deadline, f"left over: {marked(mark)}"
        time.sleep(0.05)
    return output
