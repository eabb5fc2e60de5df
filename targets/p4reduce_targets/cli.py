# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce switch`, which runs a software switch on this machine, or drives its Tofino."""

from __future__ import annotations

import ipaddress
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from grpc import ServerCredentials

from p4reduce.commands.signals import termination_signals
from p4reduce.control import diagnostics
from p4reduce.control.certificates import CertificateError, TlsFiles, server_credentials
from p4reduce_targets.bmv2 import Bmv2, TargetFailed, TargetMissing, check_interfaces
from p4reduce_targets.p4runtime import Server
from p4reduce_targets.ports import Port, PortError, PortInfo, PortSpec, check_ports, open_port
from p4reduce_targets.switch import Switch

if TYPE_CHECKING:
    from p4reduce_targets.bfrt.ports import PortRequest
    from p4reduce_targets.native import NativeSwitch


DEFAULT_CPU_PORT = 510


class Target(str, Enum):
    """The switch that runs the P4 program: software, or the Tofino of this machine."""

    sim = "sim"
    native = "native"
    bmv2 = "bmv2"
    tofino = "tofino"


class LogLevel(str, Enum):
    """The log levels of BMv2. The other targets use the nearest level of Python's logging."""

    trace = "trace"
    debug = "debug"
    info = "info"
    warn = "warn"
    error = "error"
    off = "off"


def switch(
    port: Annotated[
        list[str],
        typer.Option(
            help="Port of the switch: 1=eth:INTERFACE, or 1=udp:ADDRESS:PORT (not bmv2); for tofino NAME:SPEED[:FEC], "
            "such as 1/0:100G:rs. May be repeated."
        ),
    ],
    target: Annotated[Target, typer.Option(help="Target that runs the P4 program.")] = Target.sim,
    grpc: Annotated[
        str, typer.Option(help="HOST:PORT or unix:PATH where P4Runtime listens; port 0 takes any free port.")
    ] = "127.0.0.1:9559",
    device_id: Annotated[int, typer.Option(min=1, help="P4Runtime device id of this switch.")] = 1,
    cpu_port: Annotated[
        int | None,
        typer.Option(min=1, max=510, help="Port for packet-in and packet-out (not tofino). Default: 510."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate of the P4Runtime server (not bmv2).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the private key of --tls-cert.")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="PEM file with certificate authorities. Clients need a certificate that these have signed."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Let P4Runtime listen beyond loopback, although it does not authenticate clients.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="Least severe log messages to show.")] = LogLevel.off,
    log_file: Annotated[
        Path | None, typer.Option(help="File for the log. Default: standard error (bmv2: no log).")
    ] = None,
    pcap: Annotated[
        Path | None, typer.Option(help="Folder for captures of the packets at each port (bmv2 only).")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads that process packets (native only).")] = 1,
    bfrt: Annotated[
        str, typer.Option(help="HOST:PORT where bf_switchd serves BF Runtime (tofino only).")
    ] = "127.0.0.1:50052",
    program: Annotated[
        Path | None, typer.Option(help="Folder of the compiled program, from `make p4-tofino` (tofino only).")
    ] = None,
    cpu_interface: Annotated[
        str | None, typer.Option(help="Network interface of this machine at the chip's CPU port (tofino only).")
    ] = None,
) -> None:
    """Run a switch on this machine: sim, native or BMv2, which have no program until a controller gives them one.

    With --target tofino, serve P4Runtime for the Tofino of this machine, on which bf_switchd runs.
    """
    if pcap is not None and target is not Target.bmv2:
        raise typer.BadParameter("needs --target bmv2", param_hint="--pcap")
    if threads != 1 and target is not Target.native:
        raise typer.BadParameter("needs --target native", param_hint="--threads")
    if tls_cert is not None and target is Target.bmv2:
        raise typer.BadParameter("needs another --target than bmv2", param_hint="--tls-cert")
    if cpu_port is not None and target is Target.tofino:
        raise typer.BadParameter("the program for Tofino has its CPU port from its build", param_hint="--cpu-port")
    for option, given in (("--program", program), ("--cpu-interface", cpu_interface)):
        if (given is not None) != (target is Target.tofino):
            raise typer.BadParameter("--target tofino needs it, and no other target takes it", param_hint=option)
    cpu_port = DEFAULT_CPU_PORT if cpu_port is None else cpu_port
    ports: list[PortSpec] = []
    tofino_ports: list[PortRequest] = []
    try:
        if target is Target.tofino:
            tofino_ports = _tofino_ports(port)
        else:
            ports = [PortSpec.parse(text) for text in port]
            check_ports(ports, cpu_port)
        _check_address(grpc, insecure=insecure or tls_ca is not None)
        tls = _tls(tls_cert, tls_key, tls_ca)
        if pcap is not None:
            diagnostics.check_folder("--pcap", pcap)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        if program is not None and cpu_interface is not None:
            _log_to(log_level, log_file)
            _run_tofino(bfrt, program, tofino_ports, cpu_interface, grpc, device_id, tls, as_json=as_json)
        elif target is Target.bmv2:
            _run_bmv2(ports, grpc, device_id, cpu_port, log_level, log_file, pcap, as_json=as_json)
        else:
            _log_to(log_level, log_file)
            with ExitStack() as stack:
                device = (
                    _open_native(stack, ports, cpu_port, threads)
                    if target is Target.native
                    else _open_sim(stack, ports, cpu_port)
                )
                _serve(target, device, grpc, device_id, tls, as_json=as_json)
    except (PortError, TargetMissing, TargetFailed, OSError) as error:
        typer.echo(f"p4reduce switch: {error}", err=True)
        raise typer.Exit(1) from None


def _open_sim(stack: ExitStack, specs: Sequence[PortSpec], cpu_port: int) -> Switch:
    from p4reduce_targets.sim import load

    ports: list[Port] = []
    for spec in specs:
        ports.append(open_port(spec))
        stack.callback(ports[-1].close)
    return stack.enter_context(Switch(load, ports, cpu_port))


def _open_native(stack: ExitStack, specs: Sequence[PortSpec], cpu_port: int, threads: int) -> NativeSwitch:
    from p4reduce_targets.native import LibraryMissing, NativeSwitch

    try:
        return stack.enter_context(NativeSwitch(specs, cpu_port, threads))
    except LibraryMissing as error:
        raise TargetMissing(str(error)) from None


def _serve(
    target: Target,
    device: Switch | NativeSwitch,
    address: str,
    device_id: int,
    tls: ServerCredentials | None,
    *,
    as_json: bool,
) -> None:
    """Run a switch with a P4Runtime server in front of it until a signal ends it."""
    ports: Iterable[PortInfo] = device.ports.values()
    with Server(device, address=address, device_id=device_id, tls=tls, ports=ports) as server:
        _on_signals(device.stop)
        _print_ready(target, server.address, ports, as_json=as_json)
        device.run()


def _run_bmv2(
    specs: Sequence[PortSpec],
    address: str,
    device_id: int,
    cpu_port: int,
    log_level: LogLevel,
    log_file: Path | None,
    pcap: Path | None,
    *,
    as_json: bool,
) -> None:
    check_interfaces(specs, cpu_port)
    ended = threading.Event()
    _on_signals(ended.set)
    with Bmv2(
        specs,
        grpc_address=address,
        device_id=device_id,
        cpu_port=cpu_port,
        log_level=log_level.value,
        log_file=log_file,
        pcap=pcap,
    ) as bmv2:
        _print_ready(Target.bmv2, bmv2.address, specs, as_json=as_json)
        while not ended.wait(0.5):
            bmv2.check()


def _tofino_ports(texts: Sequence[str]) -> list[PortRequest]:
    from p4reduce_targets.bfrt.ports import PortRequest

    return [PortRequest.parse(text) for text in texts]


def _run_tofino(
    bfrt: str,
    folder: Path,
    ports: Sequence[PortRequest],
    cpu_interface: str,
    address: str,
    device_id: int,
    tls: ServerCredentials | None,
    *,
    as_json: bool,
) -> None:
    """Serve P4Runtime whenever `bf_switchd` is there, until a signal comes."""
    from p4reduce_targets.bfrt.client import BfrtError
    from p4reduce_targets.bfrt.device_config import DeviceConfigError, read_folder
    from p4reduce_targets.bfrt.switch import Tofino, connections, open_cpu_interface

    ended = threading.Event()
    _on_signals(ended.set)
    ready = False
    try:
        tofino = Tofino(bfrt, read_folder(folder), folder, ports, partial(open_cpu_interface, cpu_interface))
        for switch in connections(tofino, ended):
            infos = switch.ports.values()
            with Server(switch, address=address, device_id=device_id, tls=tls, ports=infos) as server:
                address = server.address  # the same port again, when `bf_switchd` has been away
                if not ready:
                    _print_ready(Target.tofino, address, infos, as_json=as_json)
                ready = True
                switch.run(ended)
    except (BfrtError, DeviceConfigError) as error:
        raise TargetFailed(str(error)) from None


def _on_signals(stop: Callable[[], None]) -> None:
    for number in termination_signals():
        signal.signal(number, lambda *_: stop())


def _print_ready(target: Target, address: str, ports: Iterable[PortInfo | PortSpec], *, as_json: bool) -> None:
    if as_json:
        named = {str(port.number): port.name for port in ports}
        line = json.dumps({"ready": True, "target": target.value, "grpc": address, "ports": named})
    else:
        words = [f"ready target={target.value} grpc={address}", *(f"port={port.number}={port.name}" for port in ports)]
        line = " ".join(words)
    print(line, flush=True)


def _check_address(address: str, *, insecure: bool) -> None:
    """Raise ValueError unless P4Runtime may listen at this address."""
    if address.startswith("unix:"):
        return
    diagnostics.check_address("--grpc", address, "127.0.0.1:9559 (or unix:PATH)", least=0, of_grpc=False)
    host = diagnostics.canonical_address(address).rpartition(":")[0]
    try:
        local = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = False
    if not local and not insecure:
        raise ValueError(
            f"--grpc {address}: every client that reaches P4Runtime controls the switch, so it listens on loopback "
            "only; give --tls-ca to admit only clients with a certificate, or --insecure to admit all"
        )


def _tls(cert: Path | None, key: Path | None, ca: Path | None) -> ServerCredentials | None:
    """Return the server's credentials, or None for a server without TLS. Raises ValueError."""
    if (cert is None) != (key is None) or (ca is not None and cert is None):
        raise ValueError("--tls-cert, --tls-key and --tls-ca: accepted are the first two, all of them, or none")
    if cert is None or key is None:
        return None
    try:
        return server_credentials(TlsFiles(cert, key, ca or "", called=("--tls-cert", "--tls-key", "--tls-ca")))
    except CertificateError as error:
        raise ValueError(str(error)) from None


def _log_to(level: LogLevel, file: Path | None) -> None:
    if level is LogLevel.off:
        # Warnings and errors are logged at every level, also at `off`.
        logging.basicConfig(level=logging.WARNING, filename=file, format="p4reduce switch: %(message)s")
        return
    names = {LogLevel.trace: logging.DEBUG, LogLevel.warn: logging.WARNING}
    logging.basicConfig(
        level=names.get(level, logging.getLevelName(level.value.upper())),
        filename=file,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
