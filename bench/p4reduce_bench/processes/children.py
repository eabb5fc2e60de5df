# SPDX-License-Identifier: Apache-2.0
"""Child processes that report in JSON lines, and that never outlive this process."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_targets.launch import with_parent_death_signal


class ChildFailed(P4ReduceError):
    """A child process ended when it should not have, or was silent for too long.

    The message may end with its last lines on stderr.
    """


class Child:
    """One process: its standard output is read as JSON lines, its standard error is kept for when it fails."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self.process = subprocess.Popen(
            with_parent_death_signal(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            start_new_session=True,  # Ctrl-C reaches only this process, which stops its children in order
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the JSON objects printed since the last call. Never blocks."""
        try:
            data = os.read(self.output.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def first(self, timeout: float) -> dict[str, Any]:
        """Return the first JSON object; others that are read together with it are lost.

        Raises ChildFailed when the process ends before, or after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for event in self.read():
                return event
            if self.process.poll() is not None:
                raise self.failure()
            time.sleep(0.02)
        raise ChildFailed(f"{self.name} was not ready within {timeout:g} s\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of its standard error."""
        self._errors.seek(0)
        return "\n".join(self._errors.read().decode(errors="replace").splitlines()[-lines:])

    def failure(self) -> ChildFailed:
        """Return the error that names the exit code and the last lines of standard error."""
        return ChildFailed(f"{self.name} ended with exit code {self.process.poll()}\n{self.tail()}".rstrip())

    def stop(self, grace: float = 5.0) -> None:
        """Terminate the process; after `grace` seconds, kill what is left of its process group."""
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.terminate()
                self.process.wait(grace)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.output.close()
            self._errors.close()


class ChildProcesses:
    """The child processes of one experiment; leaving the `with` block stops them, the last started first."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def start_command(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        """Start a command as child `name`."""
        self.children.append(Child(name, command, environment))
        return self.children[-1]

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start `python -m module arguments` as child `name`."""
        return self.start_command(name, [sys.executable, "-m", module, *arguments], environment)

    def events(self, children: Sequence[Child], timeout: float) -> Iterator[tuple[Child, dict[str, Any]]]:
        """Yield what `children` print until all have ended well.

        Raises ChildFailed when any child ends badly, or when nothing is printed for `timeout` seconds.
        """
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child.output, selectors.EVENT_READ, child)
            quiet_since = time.monotonic()
            running = list(children)
            while running:
                for key, _ in selector.select(0.2):
                    for event in key.data.read():
                        quiet_since = time.monotonic()
                        yield key.data, event
                for child in self.children:
                    code = child.process.poll()
                    # Other children, such as switches, must not end at all while these run.
                    if code is not None and (code != 0 or child not in children):
                        raise child.failure()
                    if code == 0 and child in running:
                        for event in child.read():
                            yield child, event
                        selector.unregister(child.output)
                        running.remove(child)
                if time.monotonic() - quiet_since > timeout:
                    names = ", ".join(child.name for child in running)
                    raise ChildFailed(f"nothing heard from {names} for {timeout:g} s")

    def __enter__(self) -> "ChildProcesses":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for child in reversed(self.children):
            child.stop()
