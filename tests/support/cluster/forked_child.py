# SPDX-License-Identifier: Apache-2.0
"""Child processes that are forked from a process that has imported `rank.py`, since imports are most of their work."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from typing import Any

from p4reduce_bench.processes.children import Child
from p4reduce_targets.launch import PR_SET_PDEATHSIG
from tests.support.own_network import THIS_THREADS, enter

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", __name__, "tests.support.cluster.rank"])


class Descriptor:
    """A file descriptor of this process, which the child gets a copy of."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> Descriptor:
    return Descriptor(sent.detach())


class Process:
    """A forked process with what `Child` and tests use of `subprocess.Popen`."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        # A daemon, since the exit of this process would wait for others.
        self._process = CONTEXT.Process(target=target, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal that ended the process, negated. None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkedChild(Child):
    """One process: its standard output is read as JSON lines, its standard error is kept for when it fails.

    Functions that are registered with `atexit` run in the end, but the interpreter does not free its modules.
    """

    def __init__(self, name: str, main: Callable[[], None], argument: str, environment: Mapping[str, str]) -> None:
        """Start a process that calls `main`, with `argument` in sys.argv, in this thread's network namespace."""
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        network = os.open(THIS_THREADS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            descriptors = [Descriptor(number) for number in (writing, self._errors.fileno(), network)]
            self.process = Process(_run, main, argument, {**os.environ, **environment}, *descriptors)  # type: ignore[assignment]
        finally:
            os.close(writing)
            os.close(network)
        self.output = open(reading, "rb", buffering=0)  # noqa: SIM115 - closed by stop()
        os.set_blocking(reading, False)
        self._rest = b""


def _run(
    main: Callable[[], None],
    argument: str,
    environment: dict[str, str],
    output: Descriptor,
    errors: Descriptor,
    network: Descriptor,
) -> None:
    """Become the process that `ForkedChild` describes, and call `main`."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the parent is the server, which ends with the tests
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined] # or the server would wait for us
    tests = multiprocessing.parent_process()
    assert tests is not None
    assert tests.is_alive(), "the tests have ended"
    if os.stat(network.number).st_ino != os.stat(THIS_THREADS).st_ino:
        enter(network.number)
    for descriptor, standard in ((output, 1), (errors, 2)):
        os.dup2(descriptor.number, standard)
        os.close(descriptor.number)
    os.close(network.number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = [argument]
    sys.stdout, sys.stderr = (open(standard, "w", buffering=1, closefd=False) for standard in (1, 2))  # noqa: SIM115
    try:
        main()
    finally:
        atexit._run_exitfuncs()
