# SPDX-License-Identifier: Apache-2.0
"""Checks of this host: its kernel, buffers, clocks and interfaces."""

from __future__ import annotations

import array
import contextlib
import fcntl
import platform
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from p4reduce.control.finding import Finding
from p4reduce.transport.addresses import family_of, protocol_of
from p4reduce.transport.base import SOCKET_BUFFER_BYTES, Switch, explain_refusal, mtu_advice
from p4reduce.transport.routes import mtu_of, route_to, source_toward
from p4reduce.transport.udp import path_mtu

_SIOCETHTOOL, _SIOCGIFVLAN = 0x8946, 0x8982
_GET_VLAN_VID = 9  # command of SIOCGIFVLAN
# From <linux/ethtool.h>.
_GDRVINFO = 0x3
_OFFLOADS = {"TSO": 0x1E, "GSO": 0x23, "GRO": 0x2B}
_UDP_SEGMENT, _UDP_GRO = 103, 104
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"}
_PROC = Path("/proc/sys")
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def kernel() -> Iterator[Finding]:
    """Check the kernel features that make packets cheap, by using them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, option, what in (
            ("UDP GSO", _UDP_SEGMENT, "one call sends several packets"),
            ("UDP GRO", _UDP_GRO, "one call receives several packets"),
        ):
            try:
                probe.setsockopt(socket.SOL_UDP, option, 1)
                yield Finding(name, "ok", what)
            except OSError as error:
                found = f"Linux {platform.release()} refuses it: {error.strerror}"
                advice = "use Linux 5.0 or later; without it, everything works, perhaps half as fast"
                yield Finding(name, "warning", found, advice)
    scope = _number(_PROC / "kernel/yama/ptrace_scope")
    if scope is not None and scope > 1:
        found = f"kernel.yama.ptrace_scope is {scope}: ranks of one host cannot read each other's memory"
        advice = "sysctl kernel.yama.ptrace_scope=1; without it, ranks of one host copy values for each other"
        yield Finding("memory of other ranks", "warning", found, advice)
    else:
        yield Finding("memory of other ranks", "ok", "ranks of one host may read each other's tensors")


def buffers() -> Iterator[Finding]:
    """Check that socket buffers may be as large as workers ask for; with CAP_NET_ADMIN they always may."""
    for name in ("rmem_max", "wmem_max"):
        limit = _number(_PROC / "net/core" / name)
        if limit is None:
            yield Finding(f"net.core.{name}", "skipped", "cannot be read on this host")
        elif limit < SOCKET_BUFFER_BYTES:
            found = f"{limit} bytes, and workers ask for {SOCKET_BUFFER_BYTES}; bursts may be lost and sent again"
            advice = f"sysctl net.core.{name}={SOCKET_BUFFER_BYTES}, or run ranks with CAP_NET_ADMIN"
            yield Finding(f"net.core.{name}", "warning", found, advice)
        else:
            yield Finding(f"net.core.{name}", "ok", f"{limit} bytes")


def clock(controllers_time: float, ours: float) -> Iterator[Finding]:
    """Check the clocks.

    controllers_time: seconds since 1970 in the middle of a call, when this host's were `ours`; 0 if unknown.
    """
    source = _CLOCKSOURCE.read_text().strip() if _CLOCKSOURCE.exists() else ""
    if source in _SLOW_CLOCKS:
        found = f"{source}, which takes a microsecond or more to read"
        advice = "boot with tsc=reliable, or choose a virtual machine with a TSC or kvm-clock"
        yield Finding("clock source", "warning", found, advice)
    elif source:
        yield Finding("clock source", "ok", source)
    if not controllers_time:
        return
    offset = abs(controllers_time - ours)
    if offset > 5:
        found = f"{offset:.0f} s from the controller's clock, which certificates and election ids depend on"
        yield Finding("clock", "warning", found, "synchronise both with a time server (chrony, systemd-timesyncd)")
    else:
        yield Finding("clock", "ok", f"{offset:.1f} s from the controller's clock")


def way(ip: str, udp_port: int, needed: int, name: str, *, untagged_only: bool = False) -> Iterator[Finding]:
    """Check the interface toward an aggregator: its MTU, its VLAN, and the offloads that affect frames.

    untagged_only: the switch admits no workers in VLANs.
    """
    subject = f"route to {name}"
    with contextlib.ExitStack() as stack:
        switch = Switch(ip, udp_port)
        try:
            source_toward(switch)
            probe = stack.enter_context(socket.socket(family_of(ip), socket.SOCK_DGRAM))
            probe.connect((ip, udp_port))
        except OSError as error:
            advice = f"give this host a route to the aggregator, and an {protocol_of(ip)} address"
            yield Finding(subject, "problem", explain_refusal(error, switch), advice)
            return
        try:
            interface = route_to(ip).interface
        except OSError as error:
            yield Finding(
                subject, "skipped", f"the kernel does not say which interface leads to {ip}: {error.strerror}"
            )
            return
        mtu = path_mtu(probe)  # of the route, which may be less than the interface's
        links = mtu_of(interface)
        if mtu < needed:
            has = f"{interface} has {mtu}"
            what = has if links == mtu else f"the route through {interface} has {mtu}, and the interface {links}"
            raise_it = f"ip link set {interface} mtu {needed}" if links < needed else ""
            narrow = f"see `ip route get {ip}` for the route's mtu" if mtu < links else ""
            yield Finding(
                f"MTU to {name}",
                "problem" if links < needed else "warning",  # ranks use the interface's
                f"{what}, and packets with their {protocol_of(ip)} headers are up to {needed} bytes",
                "; ".join(filter(None, (raise_it, narrow))) + mtu_advice(needed, mtu, ip=ip),
            )
        else:
            yield Finding(f"MTU to {name}", "ok", f"{interface} has {mtu}, {needed} are needed")
        if vlan := _vlan(probe, interface):
            found, advice = f"{interface} is in VLAN {vlan}", ""
            if untagged_only:
                found += ", and the program of the switch admits only workers without a VLAN tag"
                advice = "reach the switch through an interface that sends frames without a tag"
            yield Finding(f"VLAN to {name}", "problem" if untagged_only else "ok", found, advice)
        on = [which for which, command in _OFFLOADS.items() if _offload(probe, interface, command)]
        if Path(f"/sys/class/net/{interface}/iflink").exists() and on and _is_veth(probe, interface):
            names = ", ".join(on)
            found = f"{names} of the veth interface {interface}: a switch behind it may get several packets as one"
            advice = f"ethtool -K {interface} tso off gso off gro off tx off"
            yield Finding(f"offloads to {name}", "warning", found, advice)
        else:
            yield Finding(f"offloads to {name}", "ok", f"{interface}: {', '.join(on) or 'none'}")


def _vlan(control: socket.socket, interface: str) -> int:
    """Return the VLAN of a VLAN interface; 0 for any other."""
    # struct vlan_ioctl_args: the command, the interface, and a union with the answer.
    request = struct.pack("i24s24sh2x", _GET_VLAN_VID, interface.encode(), b"", 0)
    try:
        return int(struct.unpack_from("28xi", fcntl.ioctl(control, _SIOCGIFVLAN, request))[0])
    except OSError:
        return 0


def _offload(control: socket.socket, interface: str, command: int) -> bool:
    answer = _ethtool(control, interface, struct.pack("II", command, 0))
    return answer is not None and any(answer[4:])


def _is_veth(control: socket.socket, interface: str) -> bool:
    answer = _ethtool(control, interface, struct.pack("I32s", _GDRVINFO, b"").ljust(196, b"\0"))
    return answer is not None and answer[4:36].rstrip(b"\0") == b"veth"


def _ethtool(control: socket.socket, interface: str, command: bytes) -> bytes | None:
    value = array.array("B", command)
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP", interface.encode(), value.buffer_info()[0]))
    except OSError:
        return None
    return value.tobytes()


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
