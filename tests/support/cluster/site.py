# SPDX-License-Identifier: Apache-2.0
"""A controller by a file of switches, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.cluster.stack import status_of

DEADLINE = 60.0


class Site:
    """A controller by a file of switches, in processes of their own."""

    def __init__(self, folder: Path, target: str) -> None:
        self._undo = contextlib.ExitStack()
        self._target = target
        self._file = folder / "controller.toml"
        self.switches: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def start(self, *names: str) -> None:
        for name in names:
            self.switch(name)
        self.write()
        self.controller, said = self._begin("controller", "--config", str(self._file), "--listen", "127.0.0.1:0")
        self.address = said.split("listen=")[1].strip()

    def switch(self, name: str) -> dict[str, Any]:
        """A new one, which nobody knows yet but the next `write`."""
        process, said = self._begin(
            *("switch", "--target", self._target, "--port", "1=udp:127.0.0.1:0", "--grpc", "127.0.0.1:0")
        )
        found = re.search(r"grpc=(\S+) port=1=udp:(\S+)", said)
        assert found is not None, said
        self.processes[name] = process
        one = {"name": name, "switch": found[1], "address": [found[2]]}
        self.switches.append(one)
        return one

    def write(self) -> None:
        parts = [
            "[[switches]]\n" + "".join(f"{key} = {json.dumps(one[key])}\n" for key in one) for one in self.switches
        ]
        self._file.write_text("\n".join(parts))

    def read_again(self) -> None:
        self.write()
        self.controller.send_signal(signal.SIGHUP)

    def run(self, *command: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "p4reduce", *command, "--controller", self.address],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def json(self, *command: str) -> Any:
        return json.loads(self.run(*command, "--json"))

    def names(self) -> list[str]:
        return [one["name"] for one in status_of(self.address)["switches"]]

    def _begin(self, *command: str) -> tuple[subprocess.Popen[str], str]:
        """A process that says one line when it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "p4reduce", *command],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._undo.callback(_end, process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], DEADLINE)[0], f"{command[0]} is not ready"
        return process, process.stdout.readline()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
