# SPDX-License-Identifier: Apache-2.0
"""Finding, starting and stopping simple_switch_grpc, the P4 project's software switch (BMv2)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from finsy.proto import p4r, p4r_grpc

from p4reduce.control.diagnostics import cannot_listen, of_os, plain_host
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_targets import offloads
from p4reduce_targets.launch import with_parent_death_signal
from p4reduce_targets.ports import PortError, PortSpec, check_interface, check_ports

BINARY = "simple_switch_grpc"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class TargetMissing(RuntimeError):
    """A missing program that the target needs; the message says how to install it."""


class TargetFailed(RuntimeError):
    """A target that did not start, or ended; the message contains its last output."""


def find() -> str:
    """Return the path of simple_switch_grpc; raise TargetMissing."""
    path = shutil.which(BINARY)
    if path is None:
        raise TargetMissing(
            f"{BINARY} is not on PATH. It is BMv2, the P4 project's software switch: install the P4 project's package "
            "p4lang-bmv2, or build https://github.com/p4lang/behavioral-model. --target sim needs neither"
        )
    return path


def check_interfaces(ports: Sequence[PortSpec], cpu_port: int) -> None:
    """Raise PortError for UDP ports, which BMv2 does not have, and for interfaces that it cannot use."""
    for port in ports:
        if port.kind != "eth":
            raise PortError(
                f"port {port.number}: BMv2 needs a network interface, {port.number}=eth:INTERFACE; "
                f"{port.kind} is for sim and native"
            )
    check_ports(ports, cpu_port)
    for port in ports:
        try:
            socket.if_nametoindex(port.address)
        except OSError:
            raise PortError(f"port {port.number}: there is no interface {port.address!r}") from None
        check_interface(port.number, port.address)
    if ports and os.geteuid() != 0:
        raise PortError("BMv2 needs root to use network interfaces")
    if ports:
        _check_capability()


def _check_capability() -> None:
    """Raise PortError without CAP_NET_RAW: BMv2 would start, and silently receive no packets."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        raise PortError("BMv2 needs the capability CAP_NET_RAW to use network interfaces, and root lacks it") from None


class Bmv2:
    """A running simple_switch_grpc without a program; use it as a context manager.

    The kernel kills it when this process ends. `address` is where its P4Runtime server listens.
    """

    def __init__(
        self,
        ports: Sequence[PortSpec] = (),
        *,
        grpc_address: str = "127.0.0.1:9559",
        device_id: int = 1,
        cpu_port: int = 510,
        log_level: str = "off",
        log_file: Path | None = None,
        pcap: Path | None = None,
    ) -> None:
        self.address = _free_address(grpc_address)
        binary = find()
        known = _options(binary)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._folder = tempfile.TemporaryDirectory(prefix="p4reduce-bmv2-")
        command = [binary, "--no-p4", "--device-id", str(device_id), "-L", log_level]
        # Each instance needs its own addresses: the defaults are the same for all instances, or all with one device id.
        if "notifications-addr" in known:
            command += ["--notifications-addr", f"ipc://{self._folder.name}/notifications"]
        if "thrift-port" in known:
            command += ["--thrift-port", _free_address("0.0.0.0:0").rpartition(":")[2]]
        for port in sorted(ports, key=lambda port: port.number):
            offloads.switch_off(port.address)
            command += ["-i", f"{port.number}@{port.address}"]
        if log_file is not None:
            command += ["--log-file", str(log_file), "--log-flush"]
        if pcap is not None:
            pcap.mkdir(parents=True, exist_ok=True)
            command += [f"--pcap={pcap}"]
        command += ["--", "--grpc-server-addr", self.address, "--cpu-port", str(cpu_port)]
        self.process = subprocess.Popen(
            with_parent_death_signal(command),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._await_server()
        except BaseException:
            self.close()
            raise

    def _await_server(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        options = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
        with open_grpc_channel(self.address, options=options) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            while True:
                try:
                    stub.Capabilities(p4r.CapabilitiesRequest(), timeout=0.5, wait_for_ready=True)
                except grpc.RpcError as error:
                    if time.monotonic() > deadline:
                        raise TargetFailed(
                            f"{BINARY} does not answer at {self.address}: {error}{self.tail()}"
                        ) from None
                else:
                    self.check()  # another process may have answered
                    return
                self.check()

    def check(self) -> None:
        """Raise TargetFailed if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise TargetFailed(f"{BINARY} ended with {_exit_reason(code)}{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the last lines that BMv2 printed, each after a line break; an empty string if it printed nothing."""
        self._output.seek(0)
        last = self._output.read().decode(errors="replace").splitlines()[-lines:]
        return "".join(f"\n  {line}" for line in last)

    def close(self) -> None:
        """Terminate the process, and kill its process group if it takes too long."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()
        self._folder.cleanup()

    def __enter__(self) -> Bmv2:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _options(binary: str) -> frozenset[str]:
    """Return the options that --help lists: a build without nanomsg or Thrift exits when given theirs.

    Raises TargetFailed if the program cannot be run. If --help fails, the result is empty: the switch itself fails
    in the same way and says why.
    """
    try:
        done = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetFailed(f"{BINARY} cannot be asked for its options: {error}") from None
    return frozenset(re.findall(r"^  (?:-\w \[ )?--([\w-]+)", done.stdout, re.MULTILINE))


def _free_address(address: str) -> str:
    """Return the address with port 0 replaced by a free port; raise TargetFailed if the port is taken.

    BMv2 would share a taken port (SO_REUSEPORT), and each of the two servers would get half of the calls.
    """
    if address.startswith("unix:"):
        return address
    host, _, port = address.rpartition(":")
    plain = plain_host(host)
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((plain, int(port)))
        except OSError as error:
            raise TargetFailed(f"cannot listen at {address}: {cannot_listen(address) or of_os(error)}") from None
        return f"{host}:{probe.getsockname()[1]}"


def _exit_reason(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
