# SPDX-License-Identifier: Apache-2.0
"""A Tofino as one process: the stand-in of `bf_switchd` and a chip, and in front of it `p4reduce switch`.

python -m tests.support.bfrt.tofino switch --target tofino1-32 --program FOLDER --port 1=udp:127.0.0.1:0 --json

Its command line is that of `p4reduce switch` for software switches, so it can take their place: --target is the
profile. The ready line also has the ids of both processes; one that is killed is started again. The CPU port is a
veth pair in the network namespace of this process, so it needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_bench.processes.network import cable

from .programs import board, tofino

START_UP_S = 60.0
CHECK_S = 0.1
SPEED = "10G"


class Tofino(ChildProcesses):
    """The two processes. Leaving the block ends them."""

    def __init__(self, profile: str, program: Path, ports: Sequence[str], grpc: str, device_id: int) -> None:
        """Start both, and wait until they are ready."""
        super().__init__()
        self._profile, self._ports, self._listen = profile, list(ports), "127.0.0.1:0"
        cpu_port = tofino.PROFILES[profile].cpu_port
        ends = f"cpu{os.getpid()}", f"chip{os.getpid()}"
        cable(*ends)
        self._ports.append(f"{cpu_port}=eth:{ends[1]}")
        self.chip = self._start_chip()
        numbers = [port.partition("=")[0] for port in ports]
        if cpu_port in board(profile).cpu_ports:  # a port of the bus to the processor needs no set-up
            numbers.append(str(cpu_port))
        self._options = ["--program", str(program), "--cpu-interface", ends[0], "--bfrt", self._listen]
        self._options += [part for number in numbers for part in ("--port", f"{number}:{SPEED}")]
        self._options += ["--device-id", str(device_id)]
        self.switch, self._grpc = self._start_switch(grpc)
        del self._told["ports"][str(cpu_port)]
        self.ready = {
            "ready": True,
            "grpc": self._grpc,
            "ports": self._told["ports"],
            "bf_switchd": self.chip.process.pid,
            "p4reduce": self.switch.process.pid,
        }

    def check(self) -> None:
        """Start the process that was killed again, if one was. Raises ChildFailed if one ended otherwise."""
        for ended in [child for child in self.children if child.process.poll() is not None]:
            if ended.process.returncode != -signal.SIGKILL:
                raise ended.failure()
            self.children.remove(ended)
            ended.stop()
            if ended is self.chip:
                self.chip = self._start_chip()
            else:
                self.switch, _ = self._start_switch(self._grpc)

    def _start_switch(self, grpc: str) -> tuple[Child, str]:
        """Return the process, and the address of its P4Runtime server."""
        options = [*self._options, "--grpc", grpc, "--json"]
        switch = self.start("switch", "p4reduce", "switch", "--target", "tofino", *options)
        return switch, str(switch.first(START_UP_S)["grpc"])

    def _start_chip(self) -> Child:
        """Start the stand-in without a program, at the same addresses each time."""
        ports = [part for port in self._ports for part in ("--port", port)]
        options = ["--profile", self._profile, "--listen", self._listen, *ports]
        chip = self.start("bf_switchd", "tests.support.bfrt", *options)
        self._told: dict[str, Any] = chip.first(START_UP_S)
        self._listen = self._told["address"]
        self._ports = [f"{number}={name}" for number, name in self._told["ports"].items()]
        return chip


def main() -> None:
    """Run until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.bfrt.tofino", description=__doc__)
    parser.add_argument("command", choices=["switch"])
    parser.add_argument("--target", required=True, choices=tofino.PROFILES, help="profile")
    parser.add_argument("--program", required=True, type=Path, help="folder of the compiled program")
    parser.add_argument("--port", action="append", default=[], help="DEVICE_PORT=udp:ADDRESS:PORT or =eth:INTERFACE")
    parser.add_argument("--grpc", default="127.0.0.1:0", help="HOST:PORT of P4Runtime")
    parser.add_argument("--device-id", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON, as is done in any case")
    given = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Tofino(given.target, given.program, given.port, given.grpc, given.device_id) as switch:
        print(json.dumps(switch.ready), flush=True)
        while not ended.wait(CHECK_S):
            switch.check()


if __name__ == "__main__":
    main()
