# SPDX-License-Identifier: Apache-2.0
"""Programs of the user, run as a rank at every worker of a network."""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce_targets.launch import with_parent_death_signal
from p4reduce_topos.emulation.network import Network

GRACE_S = 60.0
"""Time for the other ranks to end after one has failed. The controller tells them of the failure."""


def command_of(text: str) -> list[str]:
    """Return the command for a text such as "train.py --epochs 3". Raises P4ReduceError.

    A .py file runs in this Python; any other word is a program on PATH.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise P4ReduceError(f"--exec {text}: {error}") from error
    if not words:
        raise P4ReduceError("--exec needs a script or a program, with its arguments: --exec 'train.py --epochs 3'")
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise P4ReduceError(f"--exec {words[0]}: there is no such file")
        return [sys.executable, *words]
    if shutil.which(words[0]) is None:
        raise P4ReduceError(f"--exec {words[0]}: there is no such program on PATH; a script's name ends with .py")
    return words


def run_at_workers(network: Network, command: Sequence[str], say: Callable[[str, str], None]) -> dict[int, int]:
    """Run a command as a rank at every worker, and return the exit status of each rank.

    The status of a process that a signal has ended is minus the signal's number. After one rank has failed, ranks that
    still run `GRACE_S` seconds later are killed.

    say: a function that gets a host's name and a line that its rank has printed.
    """
    processes = [_started(network, command, rank) for rank in range(len(network.topology.workers))]
    try:
        _follow(network, processes, say)
    finally:
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    return {rank: process.returncode for rank, process in enumerate(processes)}


def _started(network: Network, command: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
    topology = network.topology
    host = topology.workers[rank]
    environment = network.environment(host, rank=rank, world_size=len(topology.workers))
    return subprocess.Popen(
        with_parent_death_signal(["mnexec", "-a", str(network.mininet[host].pid), *command]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        start_new_session=True,
    )


def _follow(network: Network, processes: Sequence[subprocess.Popen[bytes]], say: Callable[[str, str], None]) -> None:
    """Pass on the output of all processes until they end, or until `GRACE_S` seconds after the first failure."""
    rest = [b""] * len(processes)
    until: float | None = None
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select(0.5):
                data = os.read(key.fd, 1 << 16)
                *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                if not data:
                    selector.unregister(key.fileobj)
                    lines = [rest[key.data]] if rest[key.data] else []
                for line in lines:
                    say(network.topology.workers[key.data], line.decode(errors="replace"))
            if until is None and any(process.poll() for process in processes):
                until = time.monotonic() + GRACE_S
            if until is not None and time.monotonic() > until:
                return
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
