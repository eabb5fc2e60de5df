# SPDX-License-Identifier: Apache-2.0
"""Network interfaces as switch ports: checks of an interface, and ports whose interface disappears or changes.

A port is bound to an interface by its index, so it keeps the interface when that is renamed. When the interface is
deleted or moved to another network namespace, the kernel unbinds the socket. The port then waits for an interface with
the name from --port, and binds to it. `InterfaceWatch` checks five times a second.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from p4reduce.control.diagnostics import of_os
from p4reduce_targets import offloads

POLL_INTERVAL_S = 0.2  # between checks of the interfaces
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_MR_PROMISC = 1
ETH_P_ALL = 3
ARPHRD_ETHER, ARPHRD_LOOPBACK = 1, 772
_SIOCGIFFLAGS, _SIOCGIFHWADDR, _SIOCGIFINDEX = 0x8913, 0x8927, 0x8933
_IFF_RUNNING = 0x40
_FLAGS = struct.Struct("=16sH22x")  # `struct ifreq`: an interface name and the flags
_INDEX = struct.Struct("=16si20x")
_NAME_SIZE = 15

log = logging.getLogger(__name__)


class InterfaceRefused(ValueError):
    """An interface that cannot be a port; the message says why."""


def index_of(sock: socket.socket, name: str) -> int:
    """Return the index of an interface of the socket's network namespace. Raises OSError."""
    return int(_INDEX.unpack(_ask(sock, _SIOCGIFINDEX, name))[1])


def is_up(sock: socket.socket, name: str) -> bool:
    """Return whether an interface is up and has a link. Raises OSError where there is none."""
    return bool(_FLAGS.unpack(_ask(sock, _SIOCGIFFLAGS, name))[1] & _IFF_RUNNING)


def check_type(sock: socket.socket, name: str) -> None:
    """Raise InterfaceRefused for an interface whose frames have no Ethernet header, OSError where there is none."""
    (kind,) = struct.unpack_from("=H", _ask(sock, _SIOCGIFHWADDR, name), 16)
    if kind == ARPHRD_LOOPBACK:
        raise InterfaceRefused(
            f"interface {name!r} is the loopback, on which every frame would come back to the switch; accepted are "
            "Ethernet interfaces, such as one end of a veth pair. For workers on this machine: udp:127.0.0.1:PORT"
        )
    if kind != ARPHRD_ETHER:
        raise InterfaceRefused(
            f"frames of interface {name!r} have no Ethernet header (its link type is {kind}, as of a tun or a tunnel); "
            "accepted are Ethernet interfaces, such as a tap or one end of a veth pair"
        )


def same_interface(names: Mapping[int, str]) -> tuple[int, int] | None:
    """Return two ports of `names` (port number -> interface) that share an interface, or None.

    An interface can have several names. Names of interfaces that do not exist are compared as text.
    """
    seen: dict[int | str, int] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number, name in names.items():
            try:
                key: int | str = index_of(sock, name)
            except OSError:
                key = name
            if key in seen:
                return seen[key], number
            seen[key] = number
    return None


class BoundInterface:
    """The interface that a port's packet socket is bound to."""

    def __init__(
        self, number: int, name: str, sock: socket.socket, *, offloads_off: bool, ipv6_off: bool = False
    ) -> None:
        """Take the socket of a port.

        `offloads_off`: binding turns off offloads, for ports that need single frames. `ipv6_off`: it turns off IPv6,
        with which the kernel sends packets of its own.
        """
        self.number = number
        self.name = name  # as in --port
        self._socket = sock
        self._offloads_off = offloads_off
        self._ipv6_off = ipv6_off
        self._last_name = name  # at the last check; empty: the interface was gone

    def bind(self) -> None:
        """Bind the socket to the interface named in --port. Raises OSError or InterfaceRefused."""
        check_type(self._socket, self.name)
        membership = struct.pack("=iHH8s", index_of(self._socket, self.name), PACKET_MR_PROMISC, 0, b"")
        self._socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
        if self._offloads_off:
            offloads.switch_off(self.name, sock=self._socket)
        if self._ipv6_off:
            _switch_ipv6_off(self.name)
        self._socket.bind((self.name, ETH_P_ALL))
        self._last_name = self.name

    def close(self) -> None:
        self._socket.close()

    def current_name(self) -> str:
        """Return the interface's present name, or an empty string if it is gone."""
        return str(self._socket.getsockname()[0])

    def state(self) -> str:
        """Return OpenConfig's oper-status: UP, DOWN or NOT_PRESENT."""
        for _ in range(2):  # the interface may be renamed between the two system calls
            if name := self.current_name():
                try:
                    return "UP" if is_up(self._socket, name) else "DOWN"
                except OSError:
                    continue
        return "NOT_PRESENT"

    def refresh(self, others: Iterable[BoundInterface]) -> None:
        """Bind the socket again if its interface is gone and another one has the port's name; log the change.

        `others`: the interfaces of the switch's other ports, of which none may be bound twice.
        """
        name = self.current_name()
        if name:
            if name != self._last_name:
                log.warning("port %d: its interface %s is called %s now", self.number, self._last_name, name)
            self._last_name = name
            return
        if self._last_name:
            log.warning("port %d: interface %s is gone; the port waits for %s", self.number, self._last_name, self.name)
            self._last_name = ""
        try:
            index = index_of(self._socket, self.name)
            if any(index_of(self._socket, there) == index for one in others if (there := one.current_name())):
                return
            self.bind()
        except OSError as error:
            if error.errno != errno.ENODEV:
                log.debug("port %d: cannot use interface %s yet: %s", self.number, self.name, of_os(error))
        except InterfaceRefused as error:
            log.debug("port %d: %s", self.number, error)
        else:
            log.warning("port %d: interface %s is there again", self.number, self.name)


class InterfaceWatch:
    """A thread that checks the interfaces of a switch's ports from `start` to `close`."""

    def __init__(self, interfaces: Iterable[BoundInterface]) -> None:
        self._interfaces = list(interfaces)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interfaces", daemon=True)

    def start(self) -> None:
        if self._interfaces:
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(POLL_INTERVAL_S):
            for interface in self._interfaces:
                try:
                    interface.refresh(one for one in self._interfaces if one is not interface)
                except Exception:
                    log.exception("port %d: cannot check its interface", interface.number)


def _switch_ipv6_off(name: str) -> None:
    try:
        Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6").write_text("1")
    except OSError as error:
        log.warning("interface %s: cannot turn IPv6 off on it (%s); the kernel sends packets there", name, of_os(error))


def _ask(sock: socket.socket, request: int, name: str) -> bytes:
    if not 0 < len(encoded := name.encode(errors="surrogateescape")) <= _NAME_SIZE or b"\0" in encoded:
        raise OSError(errno.ENODEV, "No such device")
    return fcntl.ioctl(sock, request, encoded.ljust(40, b"\0"))
