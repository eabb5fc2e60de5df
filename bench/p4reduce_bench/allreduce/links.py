# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces of their own, each with one or more workers behind a link of a chosen rate.

    host i:   eth0 10.0.0.i+1 ──tbf──  ──tbf── port i │ br0 10.0.0.254, for the switch and Gloo.
              ctl0 10.1.0.i+1 ──────────────── ctl i  │ br1 10.1.0.254, for the controller, not shaped.

The namespaces and their interfaces disappear with the last of their processes.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import bits_per_second
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.network import run
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU

SWITCH, CONTROL = "10.0.0.254", "10.1.0.254"
INTERFACE = "eth0"

_START_UP_S = 10.0
_PREAMBLE_TO_GAP = 8 + 4 + 12  # what the kernel's bytes lack of Ethernet's: preamble, check sequence, gap
_BURST_S = 0.0005
_BURST_LEAST, _QUEUE = 16_000, 4_000_000  # bytes
# A peak rate that never holds anything up makes the kernel cut super-packets into what a wire carries.
_PEAK, _FRAME_AROUND = "1000gbit", 500


def enter(link: str | None) -> int | None:
    """Return the rate of the option --link, and go into a private network as `network.enter` does.

    Without the option it does nothing. Raises P4ReduceError that names what is missing.
    """
    if link is None:
        return None
    rate = bits_per_second(link)
    network.enter()
    for tool, package in (("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            raise P4ReduceError(f"{tool} is not on PATH: it comes with the package {package}")
    return rate


class Links:
    """The namespaces and links of some hosts, which end with `processes`."""

    def __init__(self, processes: ChildProcesses, hosts: int, bits_per_second: int, mtu: int = DEFAULT_MTU) -> None:
        self.rate = bits_per_second
        self._mtu = mtu
        run("ip", "link", "set", "lo", "up")
        for bridge, address in (("br0", SWITCH), ("br1", CONTROL)):
            run("ip", "link", "add", bridge, "mtu", str(mtu), "type", "bridge")
            run("ip", "address", "add", f"{address}/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        for calls in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):  # a switch asks no firewall
            with suppress(OSError):
                calls.write_text("0")
        self._namespaces = [self._namespace(processes, host) for host in range(hosts)]

    def address(self, host: int) -> str:
        """Return the address of a host on its shaped link."""
        return f"10.0.0.{host + 1}"

    def inside(self, host: int, command: list[str]) -> list[str]:
        """Return the command that runs `command` in a host's namespace."""
        return ["nsenter", f"--net=/proc/{self._namespaces[host]}/ns/net", *command]

    def _namespace(self, processes: ChildProcesses, host: int) -> int:
        command = ["unshare", "--net", "sh", "-c", "echo '{}'; exec sleep infinity"]
        holder = processes.start_command(f"namespace {host}", command)
        holder.first(_START_UP_S)
        pid = holder.process.pid
        ends = (("br0", "port", INTERFACE, self.address(host)), ("br1", "ctl", "ctl0", f"10.1.0.{host + 1}"))
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        run(*inside, "ip", "link", "set", "lo", "up")
        mtu = str(self._mtu)
        for bridge, kind, name, address in ends:
            end = f"{kind}{host + 1}"
            peer = ["peer", "name", name, "mtu", mtu, "netns", str(pid)]
            run("ip", "link", "add", end, "mtu", mtu, "type", "veth", *peer)
            run("ip", "link", "set", end, "master", bridge, "up")
            run(*inside, "ip", "address", "add", f"{address}/24", "dev", name)
            run(*inside, "ip", "link", "set", name, "up")
        run(*shape(f"port{host + 1}", self.rate, mtu=self._mtu))
        run(*inside, *shape(INTERFACE, self.rate, mtu=self._mtu))
        return pid


def shape(interface: str, rate: int, queue: int = _QUEUE, mtu: int = DEFAULT_MTU) -> list[str]:
    """Return the command that limits an interface to `rate` bits per second, with a queue of `queue` bytes."""
    burst = max(_BURST_LEAST, 2 * mtu, int(rate / 8 * _BURST_S))
    options = {"rate": f"{rate}bit", "burst": burst, "limit": queue, "overhead": _PREAMBLE_TO_GAP,
               "peakrate": _PEAK, "mtu": mtu + _FRAME_AROUND}  # fmt: skip
    written = [str(part) for option in options.items() for part in option]
    return ["tc", "qdisc", "add", "dev", interface, "root", "tbf", *written]
