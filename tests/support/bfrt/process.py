# SPDX-License-Identifier: Apache-2.0
"""The process of `tests.support.bfrt` as a child of a test."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0


class BfrtProcess:
    """A device with its server in a process of its own; use it as a context manager.

    `ports`: as in --port. `program`: a folder with a device config that runs from the start, or None for none.
    """

    def __init__(self, profile: str, ports: Sequence[str], folder: Path, program: Path | None = None) -> None:
        self.address = "127.0.0.1:0"
        self.ports: dict[int, str] = {}
        self._command = [sys.executable, "-m", "tests.support.bfrt", "--profile", profile]
        self._command += [] if program is None else ["--program", str(program)]
        self._given = list(ports)
        self._log = folder / "bfrt.log"
        self._process = self._start()

    def restart(self) -> None:
        """Start again, at the same address and with the same ports, after `kill`; all state is gone."""
        self._given = [f"{number}={name}" for number, name in self.ports.items()]
        self._process = self._start()

    def kill(self) -> None:
        """End at once, as a process that crashes."""
        self._process.kill()
        self._process.wait(END_TIMEOUT_S)
        self._close()

    def hang(self) -> None:
        """Stop answering, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> BfrtProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.go_on()
            self._process.terminate()
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(END_TIMEOUT_S)
        self._close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*self._command, "--listen", self.address, *(f"--port={port}" for port in self._given)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], START_TIMEOUT_S)[0] and process.stdout.readline()
        if not ready:
            process.kill()
            process.wait(END_TIMEOUT_S)
            process.stdout.close()
            raise RuntimeError(f"the BF Runtime server is not ready: {self._log.read_text(errors='replace')[-2000:]}")
        told = json.loads(ready)
        self.address = told["address"]
        self.ports = {int(number): name for number, name in told["ports"].items()}
        return process

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
