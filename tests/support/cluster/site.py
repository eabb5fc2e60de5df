# SPDX-License-Identifier: Apache-2.0
"""A controller that reads its switches from a configuration file, and the switches, as processes."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from p4reduce_bench.processes.children import Child, ChildProcesses

from .stack import START_UP_S, Stack


class Site(Stack):
    """A stack whose controller reads a configuration file, so that switches come and go.

    Leaving the block ends every process.
    """

    def __init__(self, folder: Path, target: str) -> None:
        """Prepare the stack. `begin` starts the processes."""
        ChildProcesses.__init__(self)
        self.enter = contextlib.nullcontext
        self._target = target
        self._file = folder / "controller.toml"
        self.listed: list[dict[str, Any]] = []
        self.processes: dict[str, Child] = {}
        self._controller_options = ["--config", str(self._file)]
        self.controller = "127.0.0.1:0"

    def begin(self, *names: str) -> None:
        for name in names:
            self.switch(name)
        self.write()
        self.start_controller()

    def switch(self, name: str) -> dict[str, Any]:
        """Start a switch, and return its entry for the file. The controller learns of it after the next `write`."""
        options = ["--target", self._target, "--port", "1=udp:127.0.0.1:0", "--grpc", "127.0.0.1:0", "--json"]
        child = self.processes[name] = self.start(name, "p4reduce", "switch", *options)
        ready = child.first(START_UP_S)
        one = {"name": name, "switch": ready["grpc"], "address": [ready["ports"]["1"].removeprefix("udp:")]}
        self.listed.append(one)
        return one

    def write(self) -> None:
        parts = ["[[switches]]\n" + "".join(f"{key} = {json.dumps(one[key])}\n" for key in one) for one in self.listed]
        self._file.write_text("\n".join(parts))

    def read_again(self, *controllers: Child) -> None:
        self.write()
        for child in controllers or [self.controller_process]:
            child.process.send_signal(signal.SIGHUP)

    def run(self, *command: str, code: int = 0) -> str:
        """Run `p4reduce COMMAND`, and return its output on one line. It must exit with `code`."""
        done = subprocess.run(
            [sys.executable, "-m", "p4reduce", *command, "--controller", self.controller],
            capture_output=True, text=True, timeout=START_UP_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return " ".join((done.stdout + done.stderr).split())

    def json(self, *command: str) -> Any:
        return json.loads(self.run(*command, "--json"))

    def names(self) -> list[str]:
        return [one["name"] for one in self.status()["switches"]]
