# SPDX-License-Identifier: Apache-2.0
"""Mininet's prompt on an emulated network. A command that fails prints an error, and the prompt continues."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mininet.cli import CLI
from mininet.log import error, output

from p4reduce_targets.launch import with_parent_death_signal

if TYPE_CHECKING:
    from p4reduce_topos.emulation.network import Network

_IPERF_S = 5
_LISTENS_WITHIN_S = 10.0


class Prompt(CLI):  # type: ignore[misc]
    """The prompt, whose constructor returns when the user leaves it."""

    identchars = f"{CLI.identchars}.-"  # characters in names of nodes

    def __init__(self, network: Network) -> None:
        self._network = network
        with _terminal_restored():
            super().__init__(network.mininet)

    def onecmd(self, line: str) -> bool:
        """Execute a line. If it raises, print the error and interrupt commands that still run at hosts.

        Commands of Mininet may raise any exception.
        """
        try:
            return bool(super().onecmd(line))
        except Exception as failure:
            error(f"error: {line}: {type(failure).__name__}: {failure}\n")
            for node in self.mn.values():
                if node.waiting:
                    node.sendInt()
                    node.waitOutput()
            return False

    def do_iperf(self, line: str) -> None:
        """Measure the rate of TCP between two hosts with iperf3: iperf [CLIENT SERVER]."""
        self._iperf(line.split(), [])

    def do_iperfudp(self, line: str) -> None:
        """Measure the rate of UDP between two hosts with iperf3: iperfudp [RATE [CLIENT SERVER]], such as 10M h1 h2."""
        rate, *hosts = line.split() or ["10M"]
        self._iperf(hosts, ["--udp", "--bitrate", rate])

    def _iperf(self, hosts: Sequence[str], options: Sequence[str]) -> None:
        topology = self._network.topology
        client, server = hosts if len(hosts) == 2 else (topology.hosts[0], topology.hosts[-1])
        if len(hosts) not in (0, 2) or client == server or not {client, server} <= set(topology.hosts):
            error(f"error: accepted are two hosts of {', '.join(topology.hosts)}\n")
            return
        if shutil.which("iperf3") is None:
            error("error: iperf3 is not on PATH: it comes with the package iperf3\n")
            return
        serving = self._network.start(server, "iperf3 server", ["iperf3", "--server", "--one-off"])
        try:
            asked = ["iperf3", "--client", topology.ip(server), "--time", str(_IPERF_S), *options]
            output(self._asked(client, asked))
        finally:
            self._network.stop(serving)

    def _asked(self, client: str, command: Sequence[str]) -> str:
        """Run iperf3 at a host and return its output. Retry while the server does not listen yet."""
        inside = with_parent_death_signal(["mnexec", "-a", str(self.mn[client].pid), *command])
        deadline = time.monotonic() + _LISTENS_WITHIN_S
        while True:
            done = subprocess.run(
                inside,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if "Connection refused" not in done.stdout or time.monotonic() > deadline:
                return done.stdout


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal's settings after the block.

    Mininet changes them for a command, and restores them only if the command ends by itself.
    """
    if not sys.stdin.isatty():
        yield
        return
    former = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)
