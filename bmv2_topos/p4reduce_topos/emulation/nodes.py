# SPDX-License-Identifier: Apache-2.0
"""Networks, switches and links of Mininet's that are ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mininet.link import Link
from mininet.net import Mininet
from mininet.node import Switch

from p4reduce_bench.processes.children import Child, Family
from p4reduce_bench.processes.network import run
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_targets import offloads
from p4reduce_topos.emulation.leftovers import mark


class Net(Mininet):  # type: ignore[misc]
    """Mininet, in which a host knows its neighbours again when its link comes up: the kernel forgets them."""

    def __init__(self, know: Callable[[str], None], **options: Any) -> None:
        """know: is called with the host."""
        self._know = know
        super().__init__(**options)

    def configLinkStatus(self, src: str, dst: str, status: str) -> None:
        """Also of the command `link` at the prompt, which may name what is no link."""
        super().configLinkStatus(src, dst, status)
        if status != "up" or src not in self or dst not in self:
            return
        for host, other in ((self[src], self[dst]), (self[dst], self[src])):
            if host in self.hosts and host.connectionsTo(other):
                self._know(host.name)


class P4Switch(Switch):  # type: ignore[misc]
    """`p4reduce switch` as a switch of Mininet's, whose prompt can stop and start it."""

    def __init__(self, name: str, *, family: Family, command: Sequence[str], **options: Any) -> None:
        """`command`: what runs it, without its ports."""
        super().__init__(name, **options)
        self.child: Child | None = None
        self._family = family
        self._command = command

    def start(self, controllers: object = ()) -> None:  # noqa: ARG002 - Mininet's signature
        """Do not wait until it is ready: `wait` does. Does nothing where it runs."""
        if self.child is not None and self.child.process.poll() is None:
            return
        ports = [f"{port}=eth:{interface.name}" for port, interface in sorted(self.intfs.items()) if port > 0]
        options = [part for port in ports for part in ("--port", port)]
        self.child = self._family.start(f"switch {self.name}", "p4reduce", *self._command, *options, "--json")

    def wait(self) -> None:
        assert self.child is not None
        self.child.first(START_UP_S)

    def stop(self, deleteIntfs: bool = True) -> None:
        if self.child is not None:
            if self.child in self._family.children:
                self._family.children.remove(self.child)
                self.child.stop()
            self.child = None
        super().stop(deleteIntfs)


class Cable(Link):  # type: ignore[misc]
    """A link that is cut in the middle, for `wire` to pass its frames on: between the interfaces of `cut`."""

    def __init__(self, *nodes: Any, cut: tuple[str, str], mtu: int, **options: Any) -> None:
        self._cut, self._mtu = cut, str(mtu)
        super().__init__(*nodes, **options)

    def makeIntfPair(self, *arguments: Any, **_: Any) -> None:
        names, addresses, nodes = arguments[0:2], arguments[2:4], arguments[4:6]
        for name, address, node, middle in zip(names, addresses, nodes, self._cut, strict=True):
            end = ["name", name, "address", address, "netns", str(node.pid)]
            run("ip", "link", "add", *end, "type", "veth", "peer", "name", middle)
            mark(middle)
            offloads.switch_off(middle)
            run("ip", "link", "set", middle, "mtu", self._mtu, "up")
