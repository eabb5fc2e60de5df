# SPDX-License-Identifier: Apache-2.0
"""An etcd cluster of real processes, for tests. It needs `etcd` on PATH."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.free_ports import free_ports
from tests.support.waiting import wait_until

START_UP_S = 60.0
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to loopback


class Members:
    """An etcd cluster of one or more members on loopback. Close it with `close`, or by contextlib.closing."""

    def __init__(self, folder: Path, count: int = 1, options: Sequence[str] = (), scheme: str = "http") -> None:
        """Start all members and wait until they are healthy. Skips the test if etcd is missing.

        options: further options of each member.
        scheme: the scheme of client URLs. With https, nothing waits for the members.
        """
        if shutil.which("etcd") is None:
            pytest.skip("needs etcd (Debian: etcd-server)")
        self._folder = folder
        self._options = options
        self._scheme = scheme
        self._ports = free_ports(2 * count)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        try:
            for number in range(count):
                self.start(number)
            self.wait()
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports[: len(self._processes)]]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.addresses)}"

    def start(self, number: int) -> None:
        """Start a member. One that ran before starts with its former data."""
        peers = [f"http://127.0.0.1:{port}" for port in self._ports[len(self._processes) :]]
        client = f"{self._scheme}://{self.addresses[number]}"
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self._folder / f"m{number}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]]
        command += ["--initial-cluster", ",".join(f"m{at}={peer}" for at, peer in enumerate(peers))]
        command += ["--initial-cluster-token", self._folder.name, "--unsafe-no-fsync", *self._options]
        with (self._folder / f"m{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: int, what: signal.Signals) -> None:
        process = self._processes[number]
        assert process is not None
        process.send_signal(what)
        if what == signal.SIGKILL:
            process.wait(START_UP_S)
            self._processes[number] = None

    def wait(self) -> None:
        """Wait until all running members are healthy, which takes a majority of the cluster."""
        for number, address in enumerate(self.addresses):
            process = self._processes[number]
            if process is not None and self._scheme == "http":
                running = process
                wait_until(
                    lambda address=address, running=running: _healthy(address) or running.poll() is not None,
                    f"etcd at {address} to be healthy",
                    START_UP_S,
                )
                assert process.poll() is None, (self._folder / f"m{number}.log").read_text()[-2000:]

    def close(self) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait(START_UP_S)


def _healthy(address: str) -> bool:
    with contextlib.suppress(OSError), NO_PROXY.open(f"http://{address}/health", timeout=1) as reply:
        return b'"true"' in reply.read()
    return False
