# SPDX-License-Identifier: Apache-2.0
"""The command `doctor`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.asking import ANSWER_TIMEOUT, Metadata, ask
from p4reduce.control.certificates import TlsFiles
from p4reduce.control.diagnostics import counted
from p4reduce.control.finding import Finding
from p4reduce.errors import JoinError
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.commands.access import Access, AsJson, fail, reaches_controller
from p4reduce_controller.doctor import certificates, host, job, switches
from p4reduce_controller.settings.settings import tls_files
from p4reduce_controller.switches.aggregator import Layout

_TOFINO = "p4reduce_targets.bfrt.checks"
_WIDTH = 100  # columns
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}


@reaches_controller
def doctor(
    switch: Annotated[
        str, typer.Option(help="Name of the switch that this host is connected to, if a job has to name it.")
    ] = "",
    device_id: Annotated[int, typer.Option(help="P4Runtime device id of the switches.")] = 1,
    mtu: Annotated[int, typer.Option(help="--mtu of the controller. Default: found from its program.")] = 0,
    pipeline: Annotated[Path | None, typer.Option(help="--pipeline of the controller.")] = None,
    switch_ca: Annotated[
        Path | None, typer.Option(help="PEM file with the authorities that sign the switches' certificates.")
    ] = None,
    switch_cert: Annotated[Path | None, typer.Option(help="PEM file with the client certificate for switches.")] = None,
    switch_key: Annotated[Path | None, typer.Option(help="PEM file with the private key of --switch-cert.")] = None,
    join: Annotated[bool, typer.Option(help="Run a job of one rank from this host.")] = True,
    bfrt: Annotated[
        str, typer.Option(help="HOST:PORT of bf_switchd, on a switch with a Tofino: check only this switch.")
    ] = "",
    program: Annotated[Path | None, typer.Option(help="--program of its `p4reduce switch`.")] = None,
    cpu_interface: Annotated[str | None, typer.Option(help="--cpu-interface of its `p4reduce switch`.")] = None,
    port: Annotated[list[str] | None, typer.Option(help="--port of its `p4reduce switch`. May be repeated.")] = None,
    *,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Check the controller, the switches and this host, and say what to do.

    It asks the controller and the switches, runs a job of one rank, and checks this host's kernel, clocks, buffers
    and interfaces. With --bfrt, it checks what `p4reduce switch --target tofino` needs instead. It changes nothing. The
    exit status is 1 if something does not work.
    """
    console = Console()
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    wrapped = [Column(head, overflow="fold") for head in ("checked", "found", "what to do")]
    table = Table(wrapped[0], Column(no_wrap=True), *wrapped[1:])
    findings = []
    for option, given in (("--program", program), ("--cpu-interface", cpu_interface), ("--port", port)):
        if given and not bfrt:
            raise typer.BadParameter("needs --bfrt", param_hint=option)
    try:
        files = tls_files("switch", *(str(one or "") for one in (switch_cert, switch_key, switch_ca)))
    except SettingsError as error:
        fail(str(error))
    checks = (
        _check_tofino(bfrt, program, cpu_interface, port or [])
        if bfrt
        else _run_checks(access, switch, device_id, mtu, pipeline, files, join=join)
    )
    for finding in checks:
        findings.append(finding)
        colour = _COLOURS[finding.verdict]
        table.add_row(
            Text(finding.subject), f"[{colour}]{finding.verdict}[/]", Text(finding.found), Text(finding.advice)
        )
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console.print(table)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)


def _run_checks(
    access: Access,
    at: str,
    device_id: int,
    mtu: int,
    pipeline: Path | None,
    files: TlsFiles | None,
    *,
    join: bool,
) -> Iterator[Finding]:
    """Run all checks, and yield their findings as they come.

    at: the name of this host's switch.
    files: the certificate files for the switches.
    """
    try:
        status, local_time = _status(access)
        counts = f"{counted(len(status.switches), 'switch')}, {counted(len(status.jobs), 'job')}"
        yield Finding("controller", "ok", f"{access.controller}: {counts}")
    except JoinError as error:
        status, local_time = pb.StatusReply(), 0.0
        yield Finding("controller", "problem", str(error), "the other checks run as far as they can")
    if access.tls is not None:
        try:
            own = access.tls.files()
        except JoinError as error:
            yield Finding("certificates", "problem", str(error))
        else:
            yield from certificates.check_files(own)
            yield from certificates.check_server("the controller", access.controller, own)
    if files is not None:
        yield from certificates.check_files(files)
    cookie = _cookie(pipeline, mtu, status)
    for switch in status.switches:
        yield switches.as_reported(switch)
        yield from switches.p4runtime(switch.address, switch.name, device_id, cookie, files)
        if files is not None:
            yield from certificates.check_server(switch.name, switch.address, files)
    for switch in status.switches:
        needed = Layout(switch.lanes, switch.block_size, switch.slots).mtu(switch.ip)
        yield from host.way(switch.ip, switch.udp_port, needed, switch.name, untagged_only=switch.untagged_only)
    if join and status.switches:
        yield from job.joined(access.controller, access.token, access.tls, at)
    yield from host.clock(status.time_s, local_time)
    yield from host.kernel()
    yield from host.buffers()


def _check_tofino(
    address: str, program: Path | None, cpu_interface: str | None, ports: Sequence[str]
) -> Iterator[Finding]:
    """Run the checks of the package of targets, which other hosts need not have."""
    try:
        found: Iterator[Finding] = import_module(_TOFINO).check_switch(address, program, cpu_interface, ports)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return found


def _status(access: Access) -> tuple[pb.StatusReply, float]:
    """Return the status, and this host's time in the middle of the call. Raises JoinError."""

    def call(stub: rpc.JobsStub, metadata: Metadata) -> tuple[pb.StatusReply, float]:
        before = time.time()
        status = stub.Status(pb.StatusRequest(), timeout=ANSWER_TIMEOUT, metadata=metadata)
        return status, (before + time.time()) / 2

    return ask(access.controller, access.token, access.tls, call)


def _cookie(pipeline: Path | None, mtu: int, status: pb.StatusReply) -> int | None:
    """Return the cookie of the program that the controller gives to its switches; None if it is unknown here."""
    from p4reduce_controller.p4runtime.builds import mtu_over_ipv4
    from p4reduce_controller.p4runtime.program import PipelineError, load_schema

    if status.switches:
        one, ips = status.switches[0], [switch.ip for switch in status.switches]
        mtu = mtu or max(map(Layout(one.lanes, one.block_size, one.slots).mtu, ips))
        mtu = mtu_over_ipv4(mtu, ips)
    try:
        return load_schema(pipeline, mtu).p4cookie if mtu or pipeline else None
    except (PipelineError, StopIteration, OSError):
        return None
