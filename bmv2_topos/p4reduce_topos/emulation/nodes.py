# SPDX-License-Identifier: Apache-2.0
"""Subclasses of Mininet's network, switch and link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mininet.link import Link
from mininet.net import Mininet
from mininet.node import Switch

from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_bench.processes.network import run
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_targets import offloads
from p4reduce_topos.emulation.leftovers import mark


class Net(Mininet):  # type: ignore[misc]
    """Mininet, with static ARP entries that are restored when a link comes up, since the kernel drops them."""

    def __init__(self, restore_arp: Callable[[str], None], **options: Any) -> None:
        """Create an empty network.

        restore_arp: a function that adds the ARP entries to the host of this name.
        """
        self._restore_arp = restore_arp
        super().__init__(**options)

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """Set a link up or down. The command `link` at the prompt calls this too, perhaps for nodes without a link."""
        super().configLinkStatus(src, dst, status)
        if status != "up" or src not in self or dst not in self:
            return
        for host, other in ((self[src], self[dst]), (self[dst], self[src])):
            if host in self.hosts and host.connectionsTo(other):
                self._restore_arp(host.name)


class P4Switch(Switch):  # type: ignore[misc]
    """`p4reduce switch` as a switch of Mininet. Mininet's prompt can stop and start it."""

    def __init__(self, name: str, *, processes: ChildProcesses, command: Sequence[str], **options: Any) -> None:
        """Create a switch, which `start` runs.

        command: the command of `p4reduce` that runs it, without its ports.
        """
        super().__init__(name, **options)
        self.child: Child | None = None
        self._processes = processes
        self._command = command

    def start(self, controllers: object = ()) -> None:  # noqa: ARG002 - Mininet's signature
        """Start the process, unless it runs. `wait` waits until it is ready."""
        if self.child is not None and self.child.process.poll() is None:
            return
        # Port 0 is the loopback interface.
        ports = [f"{port}=eth:{interface.name}" for port, interface in sorted(self.intfs.items()) if port > 0]
        options = [part for port in ports for part in ("--port", port)]
        self.child = self._processes.start(f"switch {self.name}", "p4reduce", *self._command, *options, "--json")

    def wait(self) -> None:
        """Wait until the switch has printed that it is ready, at most `START_UP_S` seconds."""
        assert self.child is not None
        self.child.first(START_UP_S)

    def stop(self, deleteIntfs: bool = True) -> None:
        if self.child is not None:
            if self.child in self._processes.children:  # otherwise leaving `processes` has stopped it already
                self._processes.children.remove(self.child)
                self.child.stop()
            self.child = None
        super().stop(deleteIntfs)


class EmulatedLink(Link):  # type: ignore[misc]
    """A link of two veth pairs: `link_emulator` passes frames between their inner interfaces `inner`."""

    def __init__(self, *nodes: Any, inner: tuple[str, str], mtu: int, **options: Any) -> None:
        self._inner, self._mtu = inner, str(mtu)
        super().__init__(*nodes, **options)

    def makeIntfPair(self, *arguments: Any, **_: Any) -> None:
        """Make both veth pairs. The arguments are Mininet's: two names, two addresses, two nodes."""
        names, addresses, nodes = arguments[0:2], arguments[2:4], arguments[4:6]
        for name, address, node, middle in zip(names, addresses, nodes, self._inner, strict=True):
            end = ["name", name, "address", address, "netns", str(node.pid)]
            run("ip", "link", "add", *end, "type", "veth", "peer", "name", middle)
            mark(middle)
            offloads.switch_off(middle)
            run("ip", "link", "set", middle, "mtu", self._mtu, "up")
