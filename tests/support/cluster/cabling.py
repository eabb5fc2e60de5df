# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces of their own, and their links to the switch and to the controller."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from p4reduce_bench.processes.network import without_ipv6
from p4reduce_controller.switches.frames import vlan_of
from p4reduce_targets.offloads import switch_off
from p4reduce_targets.ports import PACKET_AUXDATA, PACKET_IGNORE_OUTGOING, SOL_PACKET, with_tag
from tests.support.dataplane.frames import in_vlan
from tests.support.own_network import Namespace, ip

CONTROLLER = "10.8.0.254"
ETH_P_ALL = 3
TAG = slice(12, 16)  # of a frame


def connect(switches: Namespace, host: Namespace, number: int) -> None:
    """Give a host a way to the controller, beside its links to the switch."""
    with switches.entered():
        ip("link", "add", f"control{number}", "type", "veth", "peer", "name", "control", "netns", host.path)
        ip("address", "add", f"{CONTROLLER}/32", "peer", f"10.8.0.{number}", "dev", f"control{number}")
        ip("link", "set", f"control{number}", "up")
    with host.entered():
        ip("address", "add", f"10.8.0.{number}/32", "peer", CONTROLLER, "dev", "control")
        ip("link", "set", "control", "up")


def cable(switches: Namespace, port: str, host: Namespace, link: str, mac: str) -> None:
    with switches.entered():
        ip("link", "add", port, "type", "veth", "peer", "name", link, "address", mac, "netns", host.path)
    for namespace, end in ((switches, port), (host, link)):
        with namespace.entered():
            without_ipv6(end)
            ip("link", "set", end, "up")


class AccessPort:
    """A port of another switch that puts a host into a VLAN: a thread, which ends with the block.

    It adds a tag to frames of the host, and passes only frames with this tag to the host, without the tag.
    """

    def __init__(self, namespace: Namespace, host: str, trunk: str, vlan: int) -> None:
        """Open the interfaces `host` and `trunk` of the namespace."""
        self._vlan = vlan
        self._stack = contextlib.ExitStack()
        with namespace.entered():
            self._host, self._trunk = (self._stack.enter_context(_socket(name)) for name in (host, trunk))
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"access port of VLAN {vlan}")

    def __enter__(self) -> AccessPort:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)
        self._stack.close()

    def _run(self) -> None:
        waiting = [self._host, self._trunk, self._end]
        while self._end not in (ready := select.select(waiting, [], [])[0]):
            for sock in ready:
                data, auxiliary, _, _ = sock.recvmsg(65536, 64)
                frame = with_tag(data, auxiliary)
                with contextlib.suppress(OSError):  # a full queue
                    if sock is self._host:
                        self._trunk.send(in_vlan(frame, self._vlan))
                    elif vlan_of(frame) == self._vlan:
                        self._host.send(frame[: TAG.start] + frame[TAG.stop :])


def _socket(interface: str) -> socket.socket:
    switch_off(interface)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    sock.bind((interface, ETH_P_ALL))
    return sock
