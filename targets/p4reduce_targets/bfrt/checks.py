# SPDX-License-Identifier: Apache-2.0
"""Checks of a Tofino for `p4reduce doctor --bfrt`: whether a switch has what `p4reduce switch --target tofino` needs.

They change nothing. While another client holds the program, it alone can read the board's ports; otherwise the checks
hold it for a moment.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from p4reduce.control.diagnostics import of_os
from p4reduce.control.finding import Finding
from p4reduce_targets import interfaces
from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt import device_config
from p4reduce_targets.bfrt.client import BfrtError, BindRefused, Client
from p4reduce_targets.bfrt.device_config import DeviceConfigError
from p4reduce_targets.bfrt.ports import (
    PortRequest,
    check_cpu_port,
    device_ports,
    enabling_advice,
    is_enabled,
    read_ports,
    read_recirculation,
    recirculation_ports,
)
from p4reduce_targets.bfrt.schema import Schema, SchemaError
from p4reduce_targets.ports import PortError

_TIMEOUT_S = 5.0
_IPV6 = Path("/proc/sys/net/ipv6/conf")
_START = "start `p4reduce switch --target tofino`"


def check_switch(
    address: str, folder: Path | None, cpu_interface: str | None, ports: Sequence[str]
) -> Iterator[Finding]:
    """Check the switch whose `bf_switchd` listens at `address`; the iterator has the findings as they come.

    The rest is as `p4reduce switch` has it, and what is not given is not checked. Raises PortError at once for a text
    in `ports` that is no port.
    """
    return _check_switch(address, folder, cpu_interface, [PortRequest.parse(text) for text in ports])


def _check_switch(
    address: str, folder: Path | None, cpu_interface: str | None, requests: Sequence[PortRequest]
) -> Iterator[Finding]:
    wanted = None
    if folder is not None:
        try:
            wanted = device_config.read_folder(folder)
            yield Finding("build", "ok", f"{folder} is for CPU port {device_config.cpu_port(wanted)}")
        except DeviceConfigError as error:
            yield Finding("build", "problem", str(error))
    try:
        with closing(Client(address, timeout_s=_TIMEOUT_S)) as client:
            yield Finding("BF Runtime", "ok", f"{address} answers")
            yield from _program(client, wanted, folder, requests)
    except (BfrtError, SchemaError) as error:
        yield Finding("BF Runtime", "problem", str(error))
    if cpu_interface is not None:
        yield from _interface(cpu_interface)


def _program(
    client: Client, wanted: pb.ForwardingPipelineConfig | None, folder: Path | None, requests: Sequence[PortRequest]
) -> Iterator[Finding]:
    running = client.running()
    if not running.config:
        yield Finding("program", "warning", "bf_switchd has no program", f"{_START}, which installs that of --program")
        return
    config = running.config[0]
    restart = "restart bf_switchd with the configuration of the build's folder, or with --skip-p4"
    try:
        cpu_port = device_config.cpu_port(config)
    except DeviceConfigError as error:
        yield Finding("program", "problem", f"bf_switchd runs {config.p4_name}: {error}", restart)
        return
    found = f"bf_switchd runs {config.p4_name}, built for CPU port {cpu_port}"
    if wanted is None:
        yield Finding("program", "ok", found)
    elif device_config.is_same_program(config, wanted):
        yield Finding("program", "ok", f"{found}: the build in {folder}")
    else:
        yield Finding("program", "problem", f"{found}: another build than that in {folder}", restart)
    try:
        client.bind(config.p4_name)
    except BindRefused as held:
        holder = "another client" if held.holder is None else f"client {held.holder}"
        yield Finding("client of the program", "ok", f"{holder} holds it: `p4reduce switch`, if that runs here")
        advice = "`p4reduce switches list` shows ports; end the client to check the rest"
        yield Finding("CPU port and ports", "skipped", "the client of the program alone can read them", advice)
        return
    yield Finding("client of the program", "warning", "no client holds it, so there is no P4Runtime server", _START)
    schema = Schema.parse(config.bfruntime_info, running.non_p4_config.bfruntime_info)
    yield from _board(client, schema, config, cpu_port)
    yield from _ports(client, schema, requests)


def _board(client: Client, schema: Schema, config: pb.ForwardingPipelineConfig, cpu_port: int) -> Iterator[Finding]:
    try:
        if check_cpu_port(client, schema, cpu_port) and not is_enabled(client, schema, cpu_port):
            found = f"{cpu_port}, an Ethernet port that is not enabled"
            yield Finding("CPU port", "warning", found, enabling_advice(cpu_port))
        else:
            yield Finding("CPU port", "ok", f"{cpu_port}, which the board has")
    except PortError as error:
        yield Finding("CPU port", "problem", str(error))
    if ports := recirculation_ports(client, schema, config):
        states = read_recirculation(client, schema, ports)
        off = [str(port) for port, on in states.items() if not on]
        if off:
            yield Finding("second pass", "warning", f"ports {', '.join(off)} do not recirculate", _START)
        else:
            yield Finding("second pass", "ok", f"ports {', '.join(map(str, ports))} recirculate")


def _ports(client: Client, schema: Schema, requests: Sequence[PortRequest]) -> Iterator[Finding]:
    there = read_ports(client, schema)
    if not requests:
        enabled = [f"{port.name} ({number}, {port})" for number, port in there.items() if port.enabled]
        found = f"enabled: {', '.join(enabled)}" if enabled else "none is enabled"
        yield Finding("ports", "ok" if enabled else "warning", found, "" if enabled else f"{_START} with --port")
    try:
        wanted = device_ports(client, schema, requests)
    except PortError as error:
        yield Finding("ports", "problem", str(error))
        return
    for number, request in wanted.items():
        subject, port = f"port {request.name}", there.get(number)
        if port is None or not port.enabled:
            yield Finding(subject, "warning", f"{number}: it is not {'enabled' if port else 'added'}", _START)
        elif not port.is_as(request):
            yield Finding(subject, "warning", f"{number}: it is {port}; --port {request}", _START)
        elif not port.up:
            advice = "check the cable; speed, FEC and autonegotiation must be as at its other end"
            yield Finding(subject, "problem", f"{number}: its link is down", advice)
        else:
            yield Finding(subject, "ok", f"{number}: {port}, up")


def _interface(name: str) -> Iterator[Finding]:
    """Check the interface at the CPU port, on which the kernel must send nothing of its own."""
    subject = f"interface {name}"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            interfaces.check_type(probe, name)
            up = interfaces.is_up(probe, name)
        except OSError as error:
            advice = "load the kernel's packet driver (bf_kpkt), or make the veth pair; then give its name"
            yield Finding(subject, "problem", of_os(error), advice)
            return
        except interfaces.InterfaceRefused as error:
            yield Finding(subject, "problem", str(error))
            return
    if up:
        yield Finding(subject, "ok", "it is up")
    else:
        yield Finding(subject, "problem", "it is down", f"ip link set {name} up; at both ends of a veth pair")
    switch = _IPV6 / name / "disable_ipv6"
    if switch.exists() and switch.read_text().strip() == "0":
        found = "IPv6 is on, so the kernel sends packets of its own there"
        yield Finding(subject, "warning", found, f"sysctl -w net.ipv6.conf.{name}.disable_ipv6=1")
